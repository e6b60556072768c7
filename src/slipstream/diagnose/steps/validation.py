"""Computes how long an evaluation takes and how many training steps pass between two evaluations.

The numbers come from the observed evaluations. If no evaluation was observed, the numbers are estimated from the loader
of known length that is not the training loader, if there is exactly one such loader.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import msgspec

from slipstream.diagnose.statistics import fmean, median
from slipstream.diagnose.steps.selection import epoch_steps, training_loader
from slipstream.numbers import plural
from slipstream.records import Evaluation, Loader, Session


class ValidationCost(msgspec.Struct, frozen=True):
    ms: float  # Duration of one evaluation
    every_steps: float  # Training steps from one evaluation to the next
    is_measured: bool
    note: str
    is_once: bool = False  # Whether only one evaluation was observed. Evaluations may be rarer than `every_steps` then.

    def share(self, step_ms: float) -> float:
        training_ms = self.every_steps * step_ms
        return self.ms / (self.ms + training_ms) if self.ms > 0 else 0.0


def validation_cost(session: Session, step_ms: float, phases: dict[str, float]) -> ValidationCost | None:
    # An evaluation before the first step, such as Lightning's sanity check, happens once and is not part of an epoch.
    seen = [evaluation for evaluation in session.evaluations if evaluation.after_step >= 0]
    if not seen:
        return _extrapolated(session, step_ms, phases)
    return None if collects_experience(session) else _measured(session, seen)


def collects_experience(session: Session) -> bool:
    """Whether the evaluations are in fact rollouts of a reinforcement learner, which collect data for the training.

    In rollouts there is no loader, and the model is called on a few states. The training uses batches that are at least
    twice as large.
    """
    if not session.evaluations or any(evaluation.loader >= 0 for evaluation in session.evaluations):
        return False
    learning: defaultdict[int, list[float]] = defaultdict(list)
    acting: defaultdict[int, list[float]] = defaultdict(list)
    for event in session.events:
        if event.kind == "forward" and event.samples and event.training == event.grad:
            (learning if event.training else acting)[event.ident].append(event.samples)
    both = learning.keys() & acting.keys()
    return bool(both) and all(2 * median(acting[ident]) <= median(learning[ident]) for ident in both)


def _measured(session: Session, seen: list[Evaluation]) -> ValidationCost | None:
    interruptions = _interruptions(seen)
    every = _period(session, interruptions)
    if every is None:
        return None
    lengths = [sum(_full_ms(session, each) for each in interruption) for interruption in interruptions]
    often = "step" if round(every) == 1 else f"{every:.0f} steps"
    seen_as = (
        f"once in {plural(round(every), 'step')}"
        if len(interruptions) == 1
        else f"{len(interruptions)} times, every {often}"
    )
    return ValidationCost(median(lengths), every, True, f"measured: seen {seen_as}", len(interruptions) == 1)


def _interruptions(seen: list[Evaluation]) -> list[list[Evaluation]]:
    """The evaluations, grouped by the training step that they follow. For example, a test may follow a validation."""
    stops: dict[int, list[Evaluation]] = {}
    for evaluation in seen:
        stops.setdefault(evaluation.after_step, []).append(evaluation)
    return [stops[step] for step in sorted(stops)]


def _period(session: Session, interruptions: list[list[Evaluation]]) -> float | None:
    after = [interruption[0].after_step for interruption in interruptions]
    if len(after) > 1:
        return median([right - left for left, right in pairwise(after)])
    epoch = epoch_steps(session)
    if epoch is not None and after[0] + 1 >= 0.9 * epoch:
        return epoch
    # Only one evaluation was observed, in the middle of an epoch, so its period is not known. The period is at least
    # the number of steps before this evaluation, and at least the number of observed steps after it. The larger number
    # is returned.
    since = max((step.index for step in session.steps), default=0) - after[0]
    return float(max(after[0] + 1, since))


def _full_ms(session: Session, evaluation: Evaluation) -> float:
    """The full duration of an evaluation. If the trial ended during it, the time of its remaining batches is added."""
    ms = (evaluation.end_ns - evaluation.start_ns) / 1e6
    loader = next((one for one in session.loaders if one.ident == evaluation.loader), None)
    last_ns = max((step.end_ns for step in session.steps), default=0)
    was_cut = session.ending.reason == "stopped" and evaluation.start_ns >= last_ns
    if was_cut and loader and loader.num_batches and 0 < evaluation.num_batches < loader.num_batches:
        return ms * loader.num_batches / evaluation.num_batches
    return ms


def _extrapolated(session: Session, step_ms: float, phases: dict[str, float]) -> ValidationCost | None:
    loader, epoch = training_loader(session), epoch_steps(session)
    others = [one for one in session.loaders if loader and one.ident != loader.ident and one.num_batches]
    if epoch is None or loader is None or len(others) != 1 or any(step.num_backwards == 0 for step in session.steps):
        return None
    if sum(step.num_batches for step in session.steps) > (loader.num_batches or 0) + 1:
        return None  # A whole epoch passed without an evaluation, and the next one began.
    other = others[0]
    batch_ms = _input_ms(session, other) + phases.get("forward", 0.0) * _size_ratio(other, loader)
    ms = (other.num_batches or 0) * batch_ms
    batches = plural(other.num_batches or 0, "batch", "es")
    note = f"not seen, estimated from {batches} of another loader, once an epoch"
    return ValidationCost(ms, epoch, False, note) if step_ms > 0 else None


def _input_ms(session: Session, other: Loader) -> float:
    """The time to get a batch of this loader. If it delivered none, the batches of all loaders are used."""
    built = [(fetch.loader, fetch.wall_ns) for fetch in session.fetches]
    built = built or [(e.ident, e.end_ns - e.start_ns) for e in session.events if e.kind == "input" and not e.kept]
    walls = [wall_ns / 1e6 for loader, wall_ns in built if loader == other.ident] or [ns / 1e6 for _, ns in built]
    return fmean(walls) / max(1, other.num_workers) if walls else 0.0


def _size_ratio(other: Loader, loader: Loader) -> float:
    return other.batch_size / loader.batch_size if other.batch_size and loader.batch_size else 1.0
