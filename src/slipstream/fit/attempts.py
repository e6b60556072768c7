"""Trials that show whether a batch size or a recipe runs within a memory limit, and how fast it is.

Each trial is a separate process, so a trial can run out of memory without harm. The modules `search` and
`memory_techniques` decide what is tried.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from slipstream.records import (
    BlockTiming,
    Choice,
    Failure,
    FitAttempt,
    Recipe,
    Speed,
    TrialOutcome,
    TrialRecord,
    TrialSpec,
)
from slipstream.sandbox.oom_messages import CRASH_SIGNALS, tells_shortage
from slipstream.tuning.progress import ProgressListener
from slipstream.verify.confidence_sequence import ConfidenceSequence
from slipstream.wire.backend import RaceBackend

NUM_STEPS: Final = 2  # steps after the warm-up, which includes the optimizer's first step
# A script that ends by itself counts as run after two steps: it has updated the weights and begun another step.
_FEWEST_STEPS: Final = 2
_ROUNDS: Final = 16
_FEWEST_ROUNDS: Final = 6
_AT_LEAST: Final = 3  # rounds of a race with very long steps, because more rounds would leave no time for other races
_RACE_SHARE: Final = 0.15  # the share of the time left that one race may take
_KNOWN: Final = 1.1  # a race ends when the upper end of the interval divided by the lower end is at most this
_BLOCK_S: Final = 0.3
_MOST_BLOCK_STEPS: Final = 200
_NEVER_RACED = Speed(1.0, 1.0, 1.0)


class FitBackend(RaceBackend, Protocol):
    def bound(self, trial: int, limit_bytes: int) -> None:
        """Limits the trial to this number of bytes when it starts."""
        ...


class FitRun(msgspec.Struct, frozen=True):
    """A batch size and a recipe to try. `is_held` says whether the memory limit applies."""

    batch_size: int
    recipe: Recipe = Recipe()
    is_held: bool = True
    sets_batch: str = ""  # the technique that sets the batch size; "": the size is the script's own

    @property
    def whole(self) -> Recipe:
        return self.recipe.plus(Choice(self.sets_batch, self.batch_size)) if self.sets_batch else self.recipe

    def __str__(self) -> str:
        batch = f"batch {self.batch_size}" if self.batch_size else "the batch"
        held = "" if self.is_held else ", no limit"
        return f"{batch}{held}" if not self.recipe.choices else f"{batch}, {self.recipe}{held}"


class FitAttempts:
    """Makes attempts on a backend, and collects the attempts in `made`."""

    def __init__(
        self,
        backend: FitBackend,
        tell: ProgressListener,
        limit_bytes: int,
        deadline_s: float,
        seed: int = 0,
        describe: Callable[[FitAttempt], str] = lambda attempt: attempt.outcome,
    ) -> None:
        """`describe` returns the sentence that `tell` gets about an attempt."""
        self._describe = describe
        self._backend, self._tell = backend, tell
        self._limit_bytes = limit_bytes
        self._deadline_s = deadline_s
        self._order = random.Random(seed)
        self._num_trials = 0
        self._anchor: int | None = None
        self._anchor_rates: list[float] = []
        self._losses: list[tuple[int, float]] = []
        self.made: list[FitAttempt] = []

    @property
    def has_time(self) -> bool:
        return self._backend.now_s() < self._deadline_s

    @property
    def has_anchor(self) -> bool:
        return self._anchor is not None

    # --- does it run? -------------------------------------------------------------------------------------------------

    def run(self, fit_run: FitRun) -> FitAttempt:
        """Runs the script for a few steps and returns the attempt."""
        trial = self._enter(fit_run)
        attempt = self._attempt(trial, fit_run)
        self._backend.leave(trial)
        return self._keep(attempt)

    def anchor(self, fit_run: FitRun) -> FitAttempt:
        """Runs the script for a few steps, and makes the trial the anchor: the trial that the others of a race are
        compared with.

        The trial ends afterwards, so that it holds no memory. A race starts the trial again.
        """
        trial = self._enter(fit_run)
        attempt = self._attempt(trial, fit_run)
        record = self._backend.leave(trial)
        if attempt.outcome == "ran" and attempt.step_ms is not None:  # a script that has ended cannot be raced
            self._anchor, self._losses = trial, record.fingerprint.losses
            attempt = msgspec.structs.replace(attempt, rate=_NEVER_RACED)
        return self._keep(attempt)

    def end(self) -> None:
        if self._anchor is not None:
            self._backend.leave(self._anchor)
            self._anchor = None

    def _enter(self, fit_run: FitRun) -> int:
        self._num_trials += 1
        if fit_run.is_held:
            self._backend.bound(self._num_trials, self._limit_bytes)
        self._tell.entering(str(fit_run))
        return self._num_trials

    def _attempt(self, trial: int, fit_run: FitRun) -> FitAttempt:
        failure = self._backend.enter(TrialSpec(trial, "fit", fit_run.whole))
        timing = BlockTiming(trial, 0, 0, 0, 0.0, 0) if failure else self._backend.run_block(trial, 0, NUM_STEPS, 0)
        record = self._backend.record(trial)
        outcome, reason = judge(failure or timing.failure, fit_run.is_held)
        if fit_run.is_held and record.limit_fault:
            outcome, reason = "failed", record.limit_fault
        return FitAttempt(
            batch_size=fit_run.batch_size,
            recipe=fit_run.recipe,
            is_held=fit_run.is_held,
            outcome=outcome,
            reason=reason,
            start_bytes=record.start_bytes,
            peak_bytes=record.held_bytes or None,
            step_ms=1e3 * timing.step_s if timing.num_steps else None,
            samples_per_s=timing.num_samples / timing.seconds if timing.seconds and timing.num_samples else None,
            changes=record.changes,
            declined=record.declined,
        )

    def _keep(self, attempt: FitAttempt) -> FitAttempt:
        self.made.append(attempt)
        self._tell.note(self._describe(attempt))
        return attempt

    # --- how fast is it? ----------------------------------------------------------------------------------------------

    def race(self, fit_run: FitRun) -> tuple[FitAttempt, TrialRecord]:
        """Races the run block by block against the anchor.

        Rates are samples per second, or steps per second if samples cannot be counted.
        """
        assert self._anchor is not None
        trial = self._enter(fit_run)
        attempt = self._attempt(trial, fit_run)
        if attempt.outcome == "ran":
            self._tell.racing([str(fit_run)])
            attempt = self._time(trial, attempt)
            self._tell.racing([])
        record = self._backend.leave(trial)
        return self._keep(attempt), record

    def _time(self, trial: int, attempt: FitAttempt) -> FitAttempt:
        assert self._anchor is not None
        sequence, rates, steps = ConfidenceSequence(), [], []
        end_s = self._backend.now_s() + _RACE_SHARE * max(0.0, self._deadline_s - self._backend.now_s())
        for round in range(1, _ROUNDS + 1):
            pair = [self._anchor, trial]
            self._order.shuffle(pair)
            timings = {one: self._backend.run_block(one, round, self._num_steps(one), 0) for one in pair}
            base, timing = timings[self._anchor], timings[trial]
            self._tell.block_done(str(trial), round)
            if timing.failure and has_run_out(timing.failure, attempt.is_held):
                return msgspec.structs.replace(attempt, outcome="ran_out", reason=timing.failure.detail)
            if base.failure or base.is_last or timing.failure or timing.is_last:
                break
            if not base.is_disturbed and not timing.is_disturbed:
                sequence.add(math.log(_pace(timing) / _pace(base)))
                rates.append(_pace(timing))
                steps.append(timing.step_s)
                self._anchor_rates.append(_pace(base))
            if round >= _FEWEST_ROUNDS and _is_known(sequence.speed()):
                break
            if round >= _AT_LEAST and self._backend.now_s() >= end_s:
                break
        if not rates:
            return attempt
        return msgspec.structs.replace(
            attempt,
            rate=sequence.speed(),
            step_ms=1e3 * statistics.median(steps),
            samples_per_s=statistics.median(rates) if timing.num_samples else None,
            peak_bytes=max(self._backend.record(trial).held_bytes, attempt.peak_bytes or 0) or None,
        )

    def _num_steps(self, trial: int) -> int:
        timings = [timing.step_s for timing in self._backend.record(trial).timings if timing.num_steps]
        return min(_MOST_BLOCK_STEPS, max(1, math.ceil(_BLOCK_S / statistics.median(timings)))) if timings else 1

    def anchor_rate(self) -> float | None:
        return statistics.median(self._anchor_rates) if self._anchor_rates else None

    def losses_apart(self, record: TrialRecord) -> float | None:
        """Returns the largest relative difference between a loss of this trial and the anchor's loss of the same step.

        Only the first steps are compared, because there both trials have the same batches and almost the same weights.
        Returns None if there is no loss to compare.
        """
        theirs: dict[int, list[float]] = {}
        for step, loss in record.fingerprint.losses:
            theirs.setdefault(step, []).append(loss)
        apart = []
        for step in sorted({step for step, _ in self._losses})[: NUM_STEPS + 2]:
            ours = [loss for at, loss in self._losses if at == step]
            if len(theirs.get(step, [])) == len(ours):
                apart += [abs(a - b) / max(abs(a), 1e-6) for a, b in zip(ours, theirs[step], strict=True)]
        return max(apart) if apart else None


def judge(failure: Failure | None, is_held: bool) -> tuple[TrialOutcome, str]:
    if failure is None:
        return "ran", ""
    if has_run_out(failure, is_held):
        return "ran_out", failure.detail
    if failure.kind == "ended" and (failure.num_steps or 0) >= _FEWEST_STEPS:
        return "ran", f"{failure.detail}, so it was not timed"
    return ("ended" if failure.kind == "ended" else "failed"), failure.detail


def has_run_out(failure: Failure, is_held: bool) -> bool:
    """Whether memory ran out. In a process with a limit, a crash counts as memory that ran out."""
    return (is_held and failure.signal in CRASH_SIGNALS) or tells_shortage(failure.detail, is_held)


def best_rate(attempts: Sequence[FitAttempt]) -> float:
    return max((attempt.rate.ratio for attempt in attempts if attempt.rate is not None), default=0.0)


def _is_known(speed: Speed) -> bool:
    return speed.is_bounded and speed.high <= _KNOWN * speed.low


def _pace(timing: BlockTiming) -> float:
    return (timing.num_samples or timing.num_steps) / timing.seconds
