"""Runs rounds. A round is one block of every running trial, in random order. A round does not count if other programs
used too many cores during one of its blocks. Only the measured load decides this, never the time that a block took."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev

import msgspec

from slipstream.diagnose.foreign_load import most_foreign
from slipstream.diagnose.statistics import hodges_lehmann
from slipstream.records import BlockTiming, Failure
from slipstream.tuning.block_length import BlockPlan, block, typical_step_s
from slipstream.tuning.budget import Budget, Costs
from slipstream.tuning.progress import ProgressListener
from slipstream.tuning.trials import Inert, RaceError, RecipeTrials, TrialPool, find_inert

# The anchor is the trial that the others of a race are compared with. The time limit of a block is this many times the
# duration of the anchor's block. At the limit the block ends after its current step. A recipe that is 30 times slower
# therefore runs only a few steps of its block, and a recipe that is twice as slow runs all of them.
MOST_TIMES_BASE = 3.0
MOST_TIMES_ROUNDS = 3  # a race that is not clear gets at most this many times the planned rounds
EXTRA_SHARE = 0.15  # rounds beyond the planned ones may use this share of the remaining time; later races need the rest
CLEAR = 2.0  # standard errors; beyond them, more rounds of the same processes hardly change the order
SHORTEST_LIMIT_S = 0.5  # the shortest time limit of a block, because the anchor's block may be shorter than a stall
WAIT_S = 1.0  # seconds between two measurements of the load of a busy machine
# After this wait another round is tried even if the load has not fallen. Other programs may use fewer cores while a
# trial runs than while all trials wait.
MOST_WAIT_S = 20.0
# If rounds that do not count have taken this long since the last round that counted, the tuning ends, because other
# programs do not stop. This is twice the longest burst that a backup, an update or a build usually makes.
PATIENCE_S = 120.0
MOST_BASE_STARTS = 3  # starts of the anchor while it races against the same trials
COPIES = ". Copies of the script run at the same time, without standard input: it must not prompt or open a fixed port"


class BusyError(RaceError):
    """Other programs keep using the cores."""


class Race(msgspec.Struct, eq=False):
    """The counted rounds of some trials."""

    rounds: list[dict[int, float]] = []  # for each round the log of the seconds per step, by the id of the trials
    failures: dict[int, Failure] = {}
    inert: dict[int, Inert] = {}  # trials that are not raced, because a technique in their recipe changes nothing
    loaded: dict[int, int] = {}  # blocks during which other programs used the cores, by the id of the trials

    def log_ratios(self, trials: RecipeTrials, anchor: RecipeTrials) -> list[float]:
        """Returns log(anchor / trials) for each round in which both were timed."""
        both = (one for one in self.rounds if id(trials) in one and id(anchor) in one)
        return [one[id(anchor)] - one[id(trials)] for one in both]

    def gain(self, trials: RecipeTrials, anchor: RecipeTrials) -> float | None:
        """Returns the typical log(anchor / trials) (Hodges and Lehmann), or None if no round has timed both."""
        ratios = self.log_ratios(trials, anchor)
        return hodges_lehmann(ratios) if ratios else None

    def is_clear(self, trials: RecipeTrials, anchor: RecipeTrials, gain: float) -> bool:
        """Whether it is clear on which side of `gain` the log ratio of these processes lies."""
        ratios = self.log_ratios(trials, anchor)
        if len(ratios) < 2:
            return False
        error = stdev(ratios) / math.sqrt(len(ratios))
        return abs(hodges_lehmann(ratios) - gain) > CLEAR * error


class Load(msgspec.Struct):
    """The load of other programs during a tuning, and what it cost."""

    num_rounds: int = 0
    foreign_cores: list[float] = []  # for each discarded round, the cores in its most disturbed block
    waited_s: float = 0.0

    @property
    def has_counted(self) -> bool:
        """Whether any round counted."""
        return self.num_rounds > len(self.foreign_cores)


class RoundRunner:
    """Runs all rounds of a tuning. It does not choose which trials race."""

    def __init__(
        self,
        pool: TrialPool,
        budget: Budget,
        costs: Costs,
        tell: ProgressListener,
        block_plan: BlockPlan,
        num_cores: float,
        seed: int,
    ) -> None:
        self._pool = pool
        self._budget = budget
        self._costs = costs
        self._tell = tell
        self._block = block(block_plan)
        self._step_s = block_plan.step_s
        self._most_foreign = most_foreign(num_cores)
        self._random = random.Random(seed)
        self._number = 0
        self.load = Load()
        self._busy_s = 0.0  # seconds that were lost to other programs since the last round that counted

    def race(
        self,
        anchor: RecipeTrials,
        others: Sequence[RecipeTrials],
        num_rounds: int,
        deadline_s: float = math.inf,
        is_enough: Callable[[Race], bool] = lambda race: True,
    ) -> Race:
        """Starts all trials in new processes and runs rounds, until `num_rounds` rounds have counted or the deadline
        has passed. If `is_enough` then returns False, rounds continue, up to MOST_TIMES_ROUNDS times `num_rounds` in
        total. If not all trials fit in memory beside the anchor, the others race afterwards, against a new process of
        the anchor. Raises RaceError if the anchor fails repeatedly, and BusyError if other programs keep using the
        cores."""
        race, room = Race(), self._pool.num_challengers(1)
        groups = [others[at : at + room] for at in range(0, len(others), room)] or [[]]
        for group in groups:
            try:
                self._race_group(race, anchor, group, num_rounds, deadline_s, is_enough)
            finally:
                for trials in (anchor, *group):
                    self._pool.release(trials)
                self._tell.racing([])
        return race

    def start(self, members: Iterable[RecipeTrials], race: Race, deadline_s: float = math.inf) -> list[RecipeTrials]:
        """Starts each member in a new process, and returns the members that run. Stores in `race` which members failed
        and which changed nothing. The first two members start even after the deadline. A further member does not start
        if its earlier start shows that it would be ready too late."""
        members = list(members)
        for trials in members:
            self._pool.leave(trials)
        members, running = self._in_time(members, deadline_s), []
        for number, (trials, following) in enumerate(zip(members, [*members[1:], None], strict=True)):
            is_last = number > 0 and self._budget.now_s() >= deadline_s
            self._pool.expect(None if is_last else following)
            begun_s = self._budget.now_s()
            failure = self._pool.enter(trials)
            if failure:
                race.failures[id(trials)] = failure
            else:
                self._costs.started(self._budget.now_s() - begun_s, trials.is_cold)
                inert = find_inert(self._pool.record(trials))
                if inert is None:
                    running.append(trials)
                else:
                    race.inert[id(trials)] = inert
                    self._pool.leave(trials)
            if is_last:
                break
        return running

    def _in_time(self, members: Sequence[RecipeTrials], deadline_s: float) -> list[RecipeTrials]:
        chosen, ready_s = list[RecipeTrials](), self._budget.now_s()
        for trials in members:
            start_s = self._pool.record(trials).startup_s  # 0.0 before the first start
            if len(chosen) < 2 or ready_s + start_s <= deadline_s:
                chosen.append(trials)
                ready_s += start_s
        return chosen

    def _race_group(
        self,
        race: Race,
        anchor: RecipeTrials,
        group: Sequence[RecipeTrials],
        num_rounds: int,
        deadline_s: float,
        is_enough: Callable[[Race], bool],
    ) -> None:
        running = self.start((anchor, *group), race, deadline_s)
        num_starts = 1
        self._tell.racing([trials.name for trials in running])
        num_counted = num_discarded = 0
        while self._budget.now_s() < deadline_s or not (num_counted or num_discarded):
            if num_counted == num_rounds:  # extra rounds get only a share of the time
                deadline_s = min(deadline_s, self._budget.now_s() + EXTRA_SHARE * (deadline_s - self._budget.now_s()))
            if num_counted >= MOST_TIMES_ROUNDS * num_rounds or (num_counted >= num_rounds and is_enough(race)):
                break
            if id(anchor) in race.failures:
                failure = race.failures.pop(id(anchor))
                if num_starts >= MOST_BASE_STARTS:
                    raise RaceError(could_not_start(anchor, failure))
                num_starts += 1
                running = [*self.start([anchor], race), *(one for one in running if one is not anchor)]
                continue
            running = [trials for trials in running if id(trials) not in race.failures]
            if group and running == [anchor]:
                break
            counts = self.run_round(race, running, anchor)
            num_counted, num_discarded = num_counted + counts, num_discarded + (not counts)

    def run_round(self, race: Race, running: Sequence[RecipeTrials], anchor: RecipeTrials) -> bool:
        """Runs one round and returns whether the round counts. After a round that does not count, the function returns
        when other programs no longer use too many cores, or after at most MOST_WAIT_S."""
        begun_s = self._budget.now_s()
        timings: dict[int, BlockTiming] = {}
        foreign = []
        for trials in self._random.sample(running, len(running)):
            timing = self._pool.run_block(trials, self._number, *self._block, self._limit_s(anchor))
            self._tell.left(self._budget.left_s(), self._budget.budget_s)
            if timing.failure:
                race.failures[id(trials)] = timing.failure
                continue
            timings[id(trials)] = timing
            if timing.foreign_cores is not None and timing.foreign_cores > self._most_foreign:
                foreign.append(timing.foreign_cores)
                race.loaded[id(trials)] = race.loaded.get(id(trials), 0) + 1
        self._number += 1
        self.load.num_rounds += 1
        if foreign:
            self.load.foreign_cores.append(max(foreign))
            self._wait(max(foreign))
            lost_s = self._budget.now_s() - begun_s
            self._budget.lose(lost_s)
            self._busy_s += lost_s
            if self._busy_s > PATIENCE_S:
                raise BusyError(f"other programs used {self.mean_foreign_cores():.1f} cores all the time")
            return False
        self._busy_s = 0.0
        timed = {ident: timing for ident, timing in timings.items() if timing.step_s > 0.0 and not timing.is_disturbed}
        if timings:
            self._costs.blocked((self._budget.now_s() - begun_s) / len(timings))
        race.rounds.append({ident: math.log(timing.step_s) for ident, timing in timed.items()})
        return True

    def _limit_s(self, anchor: RecipeTrials) -> float:
        step_s = typical_step_s(anchor.timings[-5:]) or self._step_s
        return max(SHORTEST_LIMIT_S, MOST_TIMES_BASE * sum(self._block) * step_s)

    def _wait(self, cores: float) -> None:
        """Waits until other programs no longer use the cores, for at most MOST_WAIT_S."""
        begun_s = self._budget.now_s()
        end_s = min(begun_s + MOST_WAIT_S, self._budget.end_s())
        self._tell.waiting(cores)
        while self._budget.now_s() < end_s:
            seen = self._pool.wait(WAIT_S)
            if seen is None or seen <= self._most_foreign:
                break
            self._tell.waiting(seen)
        self._tell.waiting(0.0)
        self.load.waited_s += self._budget.now_s() - begun_s

    def mean_foreign_cores(self) -> float:
        """Returns the mean number of cores that other programs used in rounds that do not count."""
        return fmean(self.load.foreign_cores) if self.load.foreign_cores else 0.0


def could_not_start(anchor: RecipeTrials, failure: Failure) -> str:
    return f"{anchor.name} could not be started: {failure}{COPIES if anchor.role == 'base' else ''}"
