"""A recipe's place in the race, through as many riders as it takes: a script that comes to its end is started again.
The paddock keeps no more riders on the track than it holds. Decides nothing about speed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import msgspec

from slipstream.records import BlockTiming, Fingerprint, Recipe, Role, TrialRecord, TrialSpec
from slipstream.tuning.progress import ProgressListener
from slipstream.wire.backend import RaceBackend

_NAMES: dict[Role, str] = {
    "twin": "nothing",
    "rounding": "rounding twin",
    "coarse": "coarse twin",
    "seed": "seed twin",
}


class RaceError(Exception):
    """A sentence for the user: there is nothing to compare with."""


class RecipeTrials:
    def __init__(self, role: Role, recipe: Recipe) -> None:
        self.role = role
        self.recipe = recipe
        self.trial: int | None = None  # on the track now
        self.past: list[TrialRecord] = []
        self.timings: list[BlockTiming] = []
        self.timings_of_trial: list[BlockTiming] = []  # timed, of the one that is on the track now
        self.age = 0  # steps that this one has behind it

    @property
    def name(self) -> str:
        return _NAMES.get(self.role) or (f"proof of {self.recipe}" if self.role == "proof" else str(self.recipe))

    @property
    def num_steps(self) -> int:
        """The farthest step that any of its riders came to."""
        return max((timing.first_step + timing.num_steps for timing in self.timings), default=0)


class TrialPool:
    """Everyone who is on the track or was."""

    def __init__(self, backend: RaceBackend, tell: ProgressListener) -> None:
        self._backend = backend
        self._tell = tell
        self._idents = itertools.count()
        self._all_trials: dict[tuple[Role, Recipe], RecipeTrials] = {}
        self._on_track: list[RecipeTrials] = []  # longest first
        self._idle: set[int] = set()  # ids of seats that may be asked to leave when room is needed
        self._expected: dict[int, int] = {}  # the number that a seat will ride under
        self.past: list[TrialRecord] = []
        self.even: Callable[[BlockTiming], BlockTiming] = lambda timing: (
            timing
        )  # spreads what only some blocks paid for over all of them

    def trials(self, role: Role, recipe: Recipe) -> RecipeTrials:
        """The one that this recipe already has, which spares its start-up if it is still on the track."""
        return self._all_trials.setdefault((role, recipe), RecipeTrials(role, recipe))

    def num_challengers(self, num_fixed: int = 1) -> int:
        """Beside so many others. By relaunching one against one: every further rider is a start in every round."""
        return max(2, self._backend.capacity()) - num_fixed

    def is_relaunching(self) -> bool:
        return self._backend.capacity() < 2

    def renew(self) -> None:
        """Those that enter from now on share no luck with those before."""
        self._expected.clear()
        self._backend.renew()

    def expect(self, trials: RecipeTrials | None) -> None:
        """It enters next, and may be launched beside the one that enters now."""
        if trials is not None and trials.trial is None and id(trials) not in self._expected:
            ident = self._expected[id(trials)] = next(self._idents)
            self._backend.expect(TrialSpec(ident, trials.role, trials.recipe))

    def enter(self, trials: RecipeTrials) -> str:
        """ "" once it stands on the track, or why it does not."""
        self._idle.discard(id(trials))
        if trials.trial is not None:
            return ""
        self._make_room()
        ident = self._expected.pop(id(trials), None)
        ident = next(self._idents) if ident is None else ident
        self._tell.entering(trials.name)
        failure = self._backend.enter(TrialSpec(ident, trials.role, trials.recipe))
        if failure:
            self._file(trials, ident)
        else:
            trials.trial, trials.timings_of_trial, trials.age = ident, [], 0
            self._on_track.append(trials)
        return failure

    def run_block(self, trials: RecipeTrials, round: int, num_steps: int, lead_in: int) -> BlockTiming:
        """A block of this seat. A script that ended in the block before is started again first."""
        failure = self.enter(trials)
        if failure:
            return BlockTiming(-1, round, 0, 0, 0.0, 0, failure=failure)
        assert trials.trial is not None
        timing = self.even(self._backend.run_block(trials.trial, round, num_steps, lead_in))
        if timing.is_last and not timing.failure:
            timing = _closed(timing, num_steps, is_only=not trials.timings_of_trial)
        if timing.num_steps and not timing.is_disturbed:
            trials.timings_of_trial.append(timing)
        trials.timings.append(timing)
        trials.age = timing.first_step + timing.num_steps
        self._tell.block_done(trials.name, round)
        if timing.failure or timing.is_last:
            self.leave(trials)
        return timing

    def record(self, trials: RecipeTrials) -> TrialRecord:
        """All its riders as one."""
        now = [self._backend.record(trials.trial)] if trials.trial is not None else []
        return merged([*trials.past, *now]) or TrialRecord(TrialSpec(-1, trials.role, trials.recipe))

    def release(self, trials: RecipeTrials) -> None:
        """May stay until its room is needed."""
        if trials.trial is not None:
            self._idle.add(id(trials))

    def leave(self, trials: RecipeTrials) -> None:
        if trials.trial is None:
            return
        trial, trials.trial, trials.age = trials.trial, None, 0
        self._idle.discard(id(trials))
        self._on_track.remove(trials)
        self._file(trials, trial)

    def _file(self, trials: RecipeTrials, trial: int) -> None:
        record = self._backend.leave(trial)
        trials.past.append(record)
        self.past.append(record)

    def clear(self) -> None:
        for trials in list(self._on_track):
            self.leave(trials)

    def _make_room(self) -> None:
        idle = [trials for trials in self._on_track if id(trials) in self._idle]
        idle.sort(key=lambda trials: trials.role == "base")  # the base is wanted again soonest
        while idle and len(self._on_track) >= self._backend.capacity():
            self.leave(idle.pop(0))


def _closed(timing: BlockTiming, num_steps: int, is_only: bool) -> BlockTiming:
    """The last of a rider. Half a block or less is a stump: the end of an epoch, evaluation, saving."""
    if timing.num_steps > num_steps // 2:
        return timing
    reached = timing.first_step + timing.num_steps
    failure = f"the script ended after {reached} steps, too few to time it" if is_only else ""
    return msgspec.structs.replace(timing, is_disturbed=True, failure=failure)


def merged(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The witness is that of the rider that came farthest: each of them began at step 0."""
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
