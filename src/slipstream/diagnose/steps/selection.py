"""Selects the blocks, steps, loaders and copies to the device that belong to the unmodified training of a session."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

import msgspec

from slipstream.diagnose.statistics import fmean, median
from slipstream.records import Block, BlockKind, Event, Fetch, Loader, Model, Optimizer, Session, Site, Step


def blocks_of(session: Session, kinds: tuple[BlockKind, ...]) -> list[Block]:
    return [block for block in session.blocks if block.kind in kinds]


def steps_of(session: Session, kinds: tuple[BlockKind, ...]) -> list[Step]:
    """The steps of these blocks, scaled to equal numbers of batches (see `alike`)."""
    return alike(session, recorded_steps(session, kinds))


def recorded_steps(session: Session, kinds: tuple[BlockKind, ...]) -> list[Step]:
    """The steps of these blocks as they were recorded."""
    wanted = {block.index for block in session.blocks if block.kind in kinds}
    return [step for step in session.steps if step.block in wanted]


def watched_kinds(session: Session) -> tuple[BlockKind, ...]:
    """The kinds of blocks that show the unmodified script: `watch`, or `warmup` if the script ended too early."""
    watched = {block.index for block in session.blocks if block.kind == "watch"}
    return ("watch",) if any(step.block in watched for step in session.steps) else ("warmup",)


def watched_steps(session: Session) -> list[Step]:
    return steps_of(session, watched_kinds(session))


def trained_batches(step: Step) -> int:
    """The number of batches whose gradients the step adds up.

    One batch counts once, even if several backward passes use it. Batches of several loaders for one backward pass also
    count as one. Without a loader the number is not known, and a step counts as one batch.
    """
    return max(1, min(step.num_batches, step.num_backwards))


def usual_batches(session: Session) -> int:
    """The most frequent number of `trained_batches` in the watched steps.

    If two numbers are equally frequent, it is the larger one, because a script that increases its accumulation does not
    return to the smaller number.
    """
    counts = Counter(trained_batches(step) for step in recorded_steps(session, watched_kinds(session)))
    return max(counts, key=lambda number: (counts[number], number), default=1)


def alike(session: Session, steps: list[Step]) -> list[Step]:
    """The steps, with times as if each step trained on the usual number of batches.

    A script may increase the number of batches per step during a training. Steps of different blocks then do different
    work. All times are scaled, except the time of the update, which happens once a step.
    """
    usual = usual_batches(session)
    return [step if (own := trained_batches(step)) == usual else _scaled(step, usual / own) for step in steps]


def _scaled(step: Step, factor: float) -> Step:
    phases = _scaled_phases(step.phases, factor)
    return msgspec.structs.replace(
        step,
        step_ms=sum(phases.values()),
        phases=phases,
        device_phases=_scaled_phases(step.device_phases, factor) if step.device_phases else None,
        host_phases=_scaled_phases(step.host_phases, factor) if step.host_phases else None,
        device_idle=_scaled_phases(step.device_idle, factor) if step.device_idle else step.device_idle,
        samples=round(step.samples * factor),
        num_batches=round(step.num_batches * factor),
        num_forwards=round(step.num_forwards * factor),
        num_backwards=round(step.num_backwards * factor),
        saving_ms=step.saving_ms * factor,
        sync_ms=step.sync_ms * factor,
    )


def _scaled_phases(phases: dict[str, float], factor: float) -> dict[str, float]:
    return {phase: ms if phase == "optimizer" else ms * factor for phase, ms in phases.items()}


def dissected_share(session: Session) -> float:
    """The number of batches in a usual step, divided by the number of batches in the profiled step.

    Without a loader, calls of the model are counted in place of batches.
    """
    dissected = recorded_steps(session, ("dissect",))
    if training_loader(session) is None:
        calls = [float(step.num_forwards) for step in dissected]
        usual = [float(step.num_forwards) for step in watched_steps(session)]
        if calls and usual and median(calls) > 0 < median(usual):
            return median(usual) / median(calls)
    batches = [trained_batches(step) for step in dissected]
    return usual_batches(session) / median(batches) if batches else 1.0


def training_loader(session: Session) -> Loader | None:
    """The loader that delivered most batches outside evaluations."""
    if not session.loaders:
        return None
    known = {loader.ident: loader for loader in session.loaders}
    inputs = (event for event in session.events if event.kind == "input" and event.ident in known)
    asked = Counter(event.ident for event in outside_evaluations(session, inputs))
    if not asked:
        asked = Counter(fetch.loader for fetch in session.fetches if fetch.loader in known)
    if not asked:
        # No batch request was recorded. Only a step that counted batches shows that a loader feeds the training.
        return session.loaders[0] if any(step.num_batches for step in session.steps) else None
    return known[asked.most_common(1)[0][0]]


def _is_inside(time_ns: int, spans: list[tuple[int, int]]) -> bool:
    """Whether one of these ordered, disjoint spans contains the time."""
    at = bisect_right(spans, (time_ns, sys.maxsize)) - 1
    return at >= 0 and time_ns < spans[at][1]


def outside_evaluations(session: Session, events: Iterable[Event]) -> list[Event]:
    spans = sorted((evaluation.start_ns, evaluation.end_ns) for evaluation in session.evaluations)
    return [event for event in events if not _is_inside(event.start_ns, spans)]


def num_workers(session: Session) -> int:
    loader = training_loader(session)
    return loader.num_workers if loader else 0


def batches_per_step(session: Session) -> float:
    steps = watched_steps(session)
    return fmean([step.num_batches for step in steps]) if steps else 0.0


def fetches_of(session: Session, loader: Loader, kinds: tuple[BlockKind, ...]) -> list[Fetch]:
    """The fetches for this loader that began while a block of these kinds ran."""
    spans = sorted((block.start_ns, block.end_ns) for block in blocks_of(session, kinds))
    return [fetch for fetch in session.fetches if fetch.loader == loader.ident and _is_inside(fetch.start_ns, spans)]


def epoch_steps(session: Session) -> float | None:
    """The number of steps in one epoch of the training loader; None if the loader's length is unknown."""
    loader, batches = training_loader(session), batches_per_step(session)
    if loader is None or not loader.num_batches or batches <= 0:
        return None
    return loader.num_batches / batches


def has_trained(session: Session) -> bool:
    """Whether a backward pass or an update was seen. If neither was seen, the steps are calls of a model."""
    return any(step.num_backwards or step.num_updates for step in session.steps)


def is_several_epochs(session: Session) -> bool:
    """Whether the script announces more than one epoch or, if it announces none, whether more than one was observed."""
    if session.length and session.length.num_epochs is not None and session.length.around is None:
        return session.length.num_epochs > 1
    return sum(step.is_first_of_epoch for step in session.steps) > 1


def is_single_epoch(session: Session) -> bool:
    """Whether the script announces exactly one epoch, and no loop repeats it."""
    length = session.length
    return length is not None and length.num_epochs == 1 and length.around is None


def main_model(session: Session) -> Model | None:
    return max(session.models, key=lambda model: model.num_parameters, default=None)


def main_optimizer(session: Session) -> Optimizer | None:
    return max(session.optimizers, key=lambda optimizer: optimizer.num_parameters, default=None)


def device_of(session: Session) -> str:
    """The device of the training, such as "cpu" or "cuda:0"; "" if it is unknown."""
    model, facts = main_model(session), session.environment.torch
    return (model.device if model else "") or (facts.device if facts else "")


def is_on_cpu(session: Session) -> bool:
    return device_of(session).startswith("cpu")


def is_on_accelerator(session: Session) -> bool:
    device = device_of(session)
    return bool(device) and not device.startswith(("cpu", "meta"))


def is_on_cuda(session: Session) -> bool:
    return device_of(session).startswith("cuda")


def most_frequent_site(session: Session, events: list[Event]) -> Site | None:
    """The most frequent source location of these events, whose `ident` must be the index of a location."""
    known = Counter(event.ident for event in events if 0 <= event.ident < len(session.sites))
    return session.sites[known.most_common(1)[0][0]] if known else None


def transfers(session: Session) -> list[Event]:
    spans = [(block.start_ns, block.end_ns) for block in blocks_of(session, watched_kinds(session))]
    return [
        event
        for event in session.events
        if event.kind == "transfer" and any(start <= event.start_ns < end for start, end in spans)
    ]
