"""The trials of a recipe. A script that ends during a race is started again, so one recipe may have several trials. The
pool ends idle trials if a new trial needs their memory. The pool makes no decisions about speed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from slipstream.numbers import plural
from slipstream.records import BlockTiming, Failure, Fingerprint, Precision, Recipe, Role, TrialRecord, TrialSpec
from slipstream.tuning.progress import ProgressListener
from slipstream.wire.backend import RaceBackend

_NAMES: dict[Role, str] = {
    "twin": "nothing",
    "rounding": "rounding control",
    "seed": "seed control",
}


class Inert(msgspec.Struct, frozen=True):
    """A technique of a recipe that changed nothing in this script."""

    technique: str
    cause: Literal["declined", "no_effect"]
    reason: str = ""  # why the technique declined; empty for "no_effect"


class RaceError(Exception):
    """A race cannot continue, because its anchor failed or because other programs keep using the cores. The anchor is
    the trial that the others of a race are compared with. The message is for the user."""


class RecipeTrials:
    """One recipe in one role, with its running trial and the records of earlier trials."""

    def __init__(
        self, role: Role, recipe: Recipe, precision: Precision = "fp32", draw: int = 0, is_cold: bool = False
    ) -> None:
        """`is_cold`: the processes are never forked, so they do not inherit the memory layout of another process."""
        self.role = role
        self.recipe = recipe
        self.is_cold = is_cold
        self._precision: Precision = precision
        self._draw = draw
        self.trial: int | None = None  # the running trial
        self.past: list[TrialRecord] = []
        self.timings: list[BlockTiming] = []
        self.timings_of_trial: list[BlockTiming] = []  # timed blocks of the running trial

    @property
    def name(self) -> str:
        return _NAMES.get(self.role) or (f"proof of {self.recipe}" if self.role == "proof" else str(self.recipe))

    def spec(self, ident: int) -> TrialSpec:
        return TrialSpec(ident, self.role, self.recipe, self._precision, self._draw, self.is_cold)

    @property
    def num_steps(self) -> int:
        """The last step that any of the trials reached."""
        return max((timing.first_step + timing.num_steps for timing in self.timings), default=0)


class TrialPool:
    """All trials of a tuning, running or ended. `spread_costs` spreads costs that fall into only some blocks, such as
    epoch starts, over all blocks."""

    def __init__(
        self,
        backend: RaceBackend,
        tell: ProgressListener,
        spread_costs: Callable[[BlockTiming], BlockTiming] = lambda timing: timing,
    ) -> None:
        self._spread_costs = spread_costs
        self._backend = backend
        self._tell = tell
        self._idents = itertools.count()
        self._all_trials: dict[tuple[Role, Recipe], RecipeTrials] = {}
        self._running: list[RecipeTrials] = []  # in the order of their starts
        self._idle: set[int] = set()  # ids of RecipeTrials that may be ended when memory is needed
        self._expected: dict[int, int] = {}  # reserved trial numbers by the id of the announced RecipeTrials
        self.past: list[TrialRecord] = []

    def trials(self, role: Role, recipe: Recipe) -> RecipeTrials:
        """Returns the trials of this recipe in this role. The first call creates the object. A trial that is still
        running needs no new start."""
        return self._all_trials.setdefault((role, recipe), RecipeTrials(role, recipe))

    def num_challengers(self, num_fixed: int = 1) -> int:
        """Returns how many other trials may run beside `num_fixed` trials. The number assumes that at least two trials
        fit in memory. If only one fits, each trial is started again for every block."""
        return max(2, self._backend.capacity()) - num_fixed

    def is_relaunching(self) -> bool:
        return self._backend.capacity() < 2

    def expect(self, trials: RecipeTrials | None) -> None:
        """Announces which trial enters next. The backend may start this trial while another trial enters."""
        if trials is not None and trials.trial is None and id(trials) not in self._expected:
            ident = self._expected[id(trials)] = next(self._idents)
            self._backend.expect(trials.spec(ident))

    def enter(self, trials: RecipeTrials) -> Failure | None:
        """Starts a trial of this recipe if none is running. Returns None, or why the start failed."""
        self._idle.discard(id(trials))
        if trials.trial is not None:
            return None
        self._free_memory()
        ident = self._expected.pop(id(trials), None)
        ident = next(self._idents) if ident is None else ident
        self._tell.entering(trials.name)
        failure = self._backend.enter(trials.spec(ident))
        if failure:
            self._file(trials, ident)
        else:
            trials.trial, trials.timings_of_trial = ident, []
            self._running.append(trials)
        return failure

    def run_block(
        self, trials: RecipeTrials, round: int, num_steps: int, lead_in: int, limit_s: float = math.inf
    ) -> BlockTiming:
        """Runs a block. If the script ended in the previous block, a new trial starts first."""
        failure = self.enter(trials)
        if failure:
            return BlockTiming(-1, round, 0, 0, 0.0, 0, failure=failure)
        assert trials.trial is not None
        timing = self._spread_costs(self._backend.run_block(trials.trial, round, num_steps, lead_in, limit_s))
        if timing.is_last and not timing.failure:
            timing = _closed(timing, num_steps, is_only=not trials.timings_of_trial)
        if timing.num_steps and not timing.is_disturbed:
            trials.timings_of_trial.append(timing)
        trials.timings.append(timing)
        self._tell.block_done(trials.name, round)
        if timing.failure or timing.is_last:
            self.leave(trials)
        return timing

    def wait(self, seconds: float) -> float | None:
        """Waits while all trials are paused. Returns the cores that other programs used, if they can be measured."""
        return self._backend.wait(seconds)

    def record(self, trials: RecipeTrials) -> TrialRecord:
        """Returns the merged record of all trials of this recipe, ended or running."""
        now = [self._backend.record(trials.trial)] if trials.trial is not None else []
        return merged([*trials.past, *now]) or TrialRecord(trials.spec(-1))

    def release(self, trials: RecipeTrials) -> None:
        """Allows the pool to end the trial when memory is needed."""
        if trials.trial is not None:
            self._idle.add(id(trials))

    def leave(self, trials: RecipeTrials) -> None:
        if trials.trial is None:
            return
        trial, trials.trial = trials.trial, None
        self._idle.discard(id(trials))
        self._running.remove(trials)
        self._file(trials, trial)

    def _file(self, trials: RecipeTrials, trial: int) -> None:
        record = self._backend.leave(trial)
        trials.past.append(record)
        self.past.append(record)

    def clear(self) -> None:
        for trials in list(self._running):
            self.leave(trials)

    def _free_memory(self) -> None:
        idle = [trials for trials in self._running if id(trials) in self._idle]
        idle.sort(key=lambda trials: trials.role == "base")  # the base is last, because it is needed again soonest
        while idle and len(self._running) >= self._backend.capacity():
            self.leave(idle.pop(0))


def _closed(timing: BlockTiming, num_steps: int, is_only: bool) -> BlockTiming:
    """Returns the timing of a trial's last block. A block with at most half of the planned steps does not count,
    because the end of an epoch, an evaluation or saving may take most of its time. If it is the only block of the
    trial, the trial has failed."""
    if timing.num_steps > num_steps // 2:
        return timing
    reached = timing.first_step + timing.num_steps
    ended = Failure(f"the script ended after {plural(reached, 'step')}, too few to time it", "ended", reached)
    failure = ended if is_only else None
    return msgspec.structs.replace(timing, is_disturbed=True, failure=failure)


def find_inert(record: TrialRecord) -> Inert | None:
    """Returns the first technique of a candidate's recipe that changed nothing, or None."""
    changed = {note.technique for note in record.changes}
    for choice in record.spec.recipe.choices if record.spec.role == "candidate" else ():
        if choice.technique not in changed:
            declined = "; ".join(note.text for note in record.declined if note.technique == choice.technique)
            return Inert(choice.technique, "declined" if declined else "no_effect", declined)
    return None


def merged(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """Merges the records of several trials. Returns None if there are none. Every trial begins at step 0, so the
    fingerprint of the trial that reached the latest step is the most complete one."""
    known = list(records)
    if not known:
        return None
    return msgspec.structs.replace(
        known[-1],
        spec=known[0].spec,
        timings=[timing for record in known for timing in record.timings],
        fingerprint=max((record.fingerprint for record in known), key=_length),
        startup_s=known[0].startup_s,
        peak_bytes=max(record.peak_bytes for record in known),
        device_peak_bytes=max(record.device_peak_bytes for record in known),
    )


def _length(fingerprint: Fingerprint) -> int:
    return max((step for step, _ in fingerprint.losses), default=-1)
