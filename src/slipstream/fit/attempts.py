"""Rides that answer whether a batch or a recipe runs within a limit of memory, and how fast it is there. Each is a
process of its own, which may run out without harm. Decides nothing."""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from slipstream.records import Choice, Entrant, Lap, Recipe, RiderRecord, Speed, Trial, TrialOutcome
from slipstream.sandbox.oom_messages import UNHELD, tells_shortage
from slipstream.tuning.progress import Teller
from slipstream.verify.confidence_sequence import Comparison
from slipstream.wire.backend import Track

NUM_STEPS: Final = 2  # after the warm-up, whose first step is the optimizer's first
_FEWEST_STEPS: Final = 2  # of a script that ends by itself: it has updated, and come round again
_ROUNDS: Final = 16
_FEWEST_ROUNDS: Final = 6
_AT_LEAST: Final = 3  # where steps are so long that others would have no time left
_RACE_SHARE: Final = 0.15  # of the time that is left
_KNOWN: Final = 1.1  # the upper end of an interval over the lower: closer than that nobody asks
_BLOCK_S: Final = 0.3
_MOST_BLOCK_STEPS: Final = 200
_ENDED = re.compile(r"the script ended after (\d+) steps")
_NEVER_RACED = Speed(1.0, 1.0, 1.0)


class FitTrack(Track, Protocol):
    def bound(self, rider: int, limit_bytes: int) -> None:
        """When it enters, it is held to so many bytes."""
        ...


class Ride(msgspec.Struct, frozen=True):
    """What is to be tried."""

    batch_size: int
    recipe: Recipe = Recipe()
    is_held: bool = True
    sets_batch: str = ""  # the technique that sets the size; "": the script's own

    @property
    def whole(self) -> Recipe:
        return self.recipe.plus(Choice(self.sets_batch, self.batch_size)) if self.sets_batch else self.recipe

    def __str__(self) -> str:
        batch = f"batch {self.batch_size}" if self.batch_size else "the batch"
        held = "" if self.is_held else ", no limit"
        return f"{batch}{held}" if not self.recipe.choices else f"{batch}, {self.recipe}{held}"


class Trials:
    def __init__(self, track: FitTrack, tell: Teller, limit_bytes: int, deadline_s: float, seed: int = 0) -> None:
        self._track, self._tell = track, tell
        self._limit_bytes = limit_bytes
        self._deadline_s = deadline_s
        self._order = random.Random(seed)
        self._num_riders = 0
        self._anchor: int | None = None
        self._anchor_rates: list[float] = []
        self._losses: list[tuple[int, float]] = []
        self.made: list[Trial] = []
        self.say: Callable[[Trial], str] = lambda trial: trial.outcome

    @property
    def has_time(self) -> bool:
        return self._track.now_s() < self._deadline_s

    @property
    def has_anchor(self) -> bool:
        return self._anchor is not None

    # --- does it run? -------------------------------------------------------------------------------------------------

    def run(self, ride: Ride) -> Trial:
        """For a few steps."""
        rider = self._enter(ride)
        trial = self._ride(rider, ride)
        self._track.leave(rider)
        return self._keep(trial)

    def anchor(self, ride: Ride) -> Trial:
        """The same; the others are raced against it. Until then its memory is free: a race launches it anew."""
        rider = self._enter(ride)
        trial = self._ride(rider, ride)
        record = self._track.leave(rider)
        if trial.outcome == "ran" and trial.step_ms is not None:  # a script that is over cannot be raced against
            self._anchor, self._losses = rider, record.witness.losses
            trial = msgspec.structs.replace(trial, rate=_NEVER_RACED)
        return self._keep(trial)

    def end(self) -> None:
        if self._anchor is not None:
            self._track.leave(self._anchor)
            self._anchor = None

    def _enter(self, ride: Ride) -> int:
        self._num_riders += 1
        if ride.is_held:
            self._track.bound(self._num_riders, self._limit_bytes)
        self._tell.entering(str(ride))
        return self._num_riders

    def _ride(self, rider: int, ride: Ride) -> Trial:
        failure = self._track.enter(Entrant(rider, "fit", ride.whole))
        lap = Lap(rider, 0, 0, 0, 0.0, 0) if failure else self._track.lap(rider, 0, NUM_STEPS, 0)
        record = self._track.record(rider)
        outcome, reason = judge(failure or lap.failure, ride.is_held)
        unheld = next((one for one in record.declined if UNHELD in one), "")
        if ride.is_held and unheld:
            outcome, reason = "failed", unheld.rpartition(": ")[2]
        return Trial(
            batch_size=ride.batch_size,
            recipe=ride.recipe,
            is_held=ride.is_held,
            outcome=outcome,
            reason=reason,
            start_bytes=record.start_bytes,
            peak_bytes=record.held_bytes or None,
            step_ms=1e3 * lap.step_s if lap.num_steps else None,
            samples_per_s=lap.num_samples / lap.seconds if lap.seconds and lap.num_samples else None,
            changes=[*record.changes, *(f"not: {sentence}" for sentence in record.declined)],
        )

    def _keep(self, trial: Trial) -> Trial:
        self.made.append(trial)
        self._tell.note(self.say(trial))
        return trial

    # --- how fast is it? ----------------------------------------------------------------------------------------------

    def race(self, ride: Ride) -> tuple[Trial, RiderRecord]:
        """Block by block against the anchor: samples per second, or steps where samples cannot be counted."""
        assert self._anchor is not None
        rider = self._enter(ride)
        trial = self._ride(rider, ride)
        if trial.outcome == "ran":
            self._tell.racing([str(ride)])
            trial = self._time(rider, trial)
            self._tell.racing([])
        record = self._track.leave(rider)
        return self._keep(trial), record

    def _time(self, rider: int, trial: Trial) -> Trial:
        assert self._anchor is not None
        comparison, rates, steps = Comparison(), [], []
        end_s = self._track.now_s() + _RACE_SHARE * max(0.0, self._deadline_s - self._track.now_s())
        for round in range(1, _ROUNDS + 1):
            pair = [self._anchor, rider]
            self._order.shuffle(pair)
            laps = {one: self._track.lap(one, round, self._num_steps(one), 0) for one in pair}
            base, lap = laps[self._anchor], laps[rider]
            self._tell.lap(str(rider), round)
            if lap.failure and tells_shortage(lap.failure, trial.is_held):
                return msgspec.structs.replace(trial, outcome="ran_out", reason=lap.failure)
            if base.failure or base.is_last or lap.failure or lap.is_last:
                break
            if not base.is_disturbed and not lap.is_disturbed:
                comparison.add(math.log(_pace(lap) / _pace(base)))
                rates.append(_pace(lap))
                steps.append(lap.step_s)
                self._anchor_rates.append(_pace(base))
            if round >= _FEWEST_ROUNDS and _is_known(comparison.speed()):
                break
            if round >= _AT_LEAST and self._track.now_s() >= end_s:
                break
        if not rates:
            return trial
        return msgspec.structs.replace(
            trial,
            rate=comparison.speed(),
            step_ms=1e3 * statistics.median(steps),
            samples_per_s=statistics.median(rates) if lap.num_samples else None,
            peak_bytes=max(self._track.record(rider).held_bytes, trial.peak_bytes or 0) or None,
        )

    def _num_steps(self, rider: int) -> int:
        laps = [lap.step_s for lap in self._track.record(rider).laps if lap.num_steps]
        return min(_MOST_BLOCK_STEPS, max(1, math.ceil(_BLOCK_S / statistics.median(laps)))) if laps else 1

    def anchor_rate(self) -> float | None:
        return statistics.median(self._anchor_rates) if self._anchor_rates else None

    def losses_apart(self, record: RiderRecord) -> float | None:
        """The largest relative difference of a loss from the anchor's, over the steps that both made first; None: none
        was seen. Of the same batches from the same weights."""
        theirs: dict[int, list[float]] = {}
        for step, loss in record.witness.losses:
            theirs.setdefault(step, []).append(loss)
        apart = []
        for step in sorted({step for step, _ in self._losses})[: NUM_STEPS + 2]:
            ours = [loss for at, loss in self._losses if at == step]
            if len(theirs.get(step, [])) == len(ours):
                apart += [abs(a - b) / max(abs(a), 1e-6) for a, b in zip(ours, theirs[step], strict=True)]
        return max(apart) if apart else None


def judge(failure: str, is_held: bool) -> tuple[TrialOutcome, str]:
    if not failure:
        return "ran", ""
    if tells_shortage(failure, is_held):
        return "ran_out", failure
    ended = _ENDED.match(failure)
    if ended is not None and int(ended[1]) >= _FEWEST_STEPS:
        return "ran", f"{failure}: it was not timed"
    return ("ended" if failure.startswith("the script ended") else "failed"), failure


def best_rate(trials: Sequence[Trial]) -> float:
    return max((trial.rate.ratio for trial in trials if trial.rate is not None), default=0.0)


def _is_known(speed: Speed) -> bool:
    return speed.is_bounded and speed.high <= _KNOWN * speed.low


def _pace(lap: Lap) -> float:
    return (lap.num_samples or lap.num_steps) / lap.seconds
