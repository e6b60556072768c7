"""Selects the blocks, steps, loaders and copies of a session that belong to the training as the script wrote it."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from slipstream.diagnose.statistics import fmean
from slipstream.records import Block, BlockKind, Event, Fetch, Loader, Model, Optimizer, Session, Site, Step


def blocks_of(session: Session, kinds: tuple[BlockKind, ...]) -> list[Block]:
    return [block for block in session.blocks if block.kind in kinds]


def steps_of(session: Session, kinds: tuple[BlockKind, ...]) -> list[Step]:
    wanted = {block.index for block in session.blocks if block.kind in kinds}
    return [step for step in session.steps if step.block in wanted]


def watched_kinds(session: Session) -> tuple[BlockKind, ...]:
    """The kinds of blocks that show the unmodified script. For a script that ended too early for those, the warm-up."""
    return ("watch",) if steps_of(session, ("watch",)) else ("warmup",)


def watched_steps(session: Session) -> list[Step]:
    return steps_of(session, watched_kinds(session))


def training_loader(session: Session) -> Loader | None:
    """The loader that delivered most batches of the steps. Validation loaders deliver only inside evaluations."""
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
    """The fetches for this loader while a block of these kinds ran."""
    spans = sorted((block.start_ns, block.end_ns) for block in blocks_of(session, kinds))
    return [fetch for fetch in session.fetches if fetch.loader == loader.ident and _is_inside(fetch.start_ns, spans)]


def epoch_steps(session: Session) -> float | None:
    """Steps in one epoch of the training loader; None if its length is unknown."""
    loader, batches = training_loader(session), batches_per_step(session)
    if loader is None or not loader.num_batches or batches <= 0:
        return None
    return loader.num_batches / batches


def is_several_epochs(session: Session) -> bool:
    """Whether more than one epoch was observed, or the script announces more than one."""
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
    """The device of the training: "cpu", "cuda:0"; "" if unknown."""
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
    """For events whose `ident` names a source location: the location of most of them."""
    known = Counter(event.ident for event in events if 0 <= event.ident < len(session.sites))
    return session.sites[known.most_common(1)[0][0]] if known else None


def transfers(session: Session) -> list[Event]:
    spans = [(block.start_ns, block.end_ns) for block in blocks_of(session, watched_kinds(session))]
    return [
        event
        for event in session.events
        if event.kind == "transfer" and any(start <= event.start_ns < end for start, end in spans)
    ]
