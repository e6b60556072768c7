"""Runs races: rounds of blocks in random order. A comparison ends as soon as it is decided, and the next one takes its
place. The scheduler does not choose candidates and does not store verdicts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence

import msgspec

from slipstream.diagnose.statistics import median
from slipstream.records import BlockTiming, Failure, Recipe
from slipstream.tuning.block_length import BlockPlan, block, typical_step_s
from slipstream.tuning.budget import HOPE_SHARE, Budget
from slipstream.tuning.comparison import LEADING_ROUNDS, MIN_ROUNDS, Comparison
from slipstream.tuning.pace_model import PaceModel
from slipstream.tuning.progress import ProgressListener
from slipstream.tuning.step_drift import change_of_all, is_drifting
from slipstream.tuning.trials import RaceError, RecipeTrials, TrialPool

MAX_CHALLENGERS = 8  # they share one base; noise lasts about a second, so that longer rounds pair hardly worse
# Challengers that start together. As many more follow while none leads, because a start costs as much as many rounds.
FEW_AT_FIRST = 4
STARTING_SHARE = 0.25  # of the remaining time, for the candidates that start together
RELAUNCH_BLOCKS = 8  # times the usual block: a start costs more than a block
MAX_FAILURES = 2  # of an anchor, in a row
MIN_TURN = 10  # rounds; fewer cannot decide anything
HALVING_ROUNDS = 16  # after this many the worse half of the undecided candidates is paused
FEWEST = 3  # candidates that continue
FEWEST_AT_FIRST = 2
DOUBTFUL_STEPS = 30  # steps of the base, which take as long as the first few steps of a trial that is ten times as slow
FIRST_PASS = 0.6  # of the time; then the most promising undecided candidates continue
GRACE_SHARE = 0.05  # of the budget, beyond a deadline
NEW_GRACE_SHARE = 0.1  # for a candidate whose start took longer than expected, so that it may still lead
FINAL_GRACE_SHARE = 0.25
CATCHING_UP_SHARE = 0.05  # of the budget: a trial that is farther ahead than this starts again with the others
COPIES = ". Copies of the script run at the same time, without standard input: it must not prompt or open a fixed port"
UNCOUNTED = -1  # the round number of a block that only catches up with other trials
BETTER = 1.01  # a paused candidate replaces a running one only if its estimate is better by this factor


class RaceScheduler:
    """Runs all races of a tuning. Rounds are numbered consecutively over all races."""

    def __init__(
        self,
        pool: TrialPool,
        budget: Budget,
        tell: ProgressListener,
        seed: int,
        block_plan: BlockPlan,
        pace_model: PaceModel,
    ) -> None:
        self._pool = pool
        self._budget = budget
        self._tell = tell
        self._random = random.Random(seed)
        self._block_plan = block_plan
        self._step_s = block_plan.step_s  # step time of the anchor, first from the check and then measured
        self._pace_model = pace_model
        self._round = 0
        self._blocks: tuple[int, int] | None = None  # steps and lead-in, fixed by the first round
        self._timing_s: list[float] = []
        self._num_trials = 2  # in a round
        self._has_control = False  # whether a control has run
        self._startups: list[tuple[Recipe, float]] = []  # recipe and seconds of each start
        self._anchor_recipe = Recipe()  # the recipe of the anchor in the current race
        self._failures: dict[int, int] = {}
        self.is_slowing = False  # whether the steps of this script get longer during the training

    def race(
        self,
        comparisons: Sequence[Comparison],
        update_deadline_s: Callable[[], float],
        settle: Callable[[Comparison], Comparison | None],
        companions: Iterable[RecipeTrials] = (),
    ) -> None:
        """Races until every comparison is decided or the time is over. `update_deadline_s` is called before every
        decision that depends on the time; the caller may take decisions of its own there. `settle` is called with each
        decided comparison, and may return another one to race. All comparisons share an anchor. Companions are further
        trials that run in every round, so that others can be compared with them too. Raises RaceError if the anchor or
        a companion fails."""
        if not comparisons:
            return
        fixed, all_trials = list(dict.fromkeys([comparisons[0].anchor, *companions])), list[RecipeTrials]()
        self._anchor_recipe = comparisons[0].anchor.recipe
        try:
            self._race(comparisons, fixed, all_trials, update_deadline_s, settle)
        finally:
            for trials in [*fixed, *all_trials]:
                self._pool.release(trials)
            self._tell.racing([])

    def _race(
        self,
        comparisons: Sequence[Comparison],
        fixed: Sequence[RecipeTrials],
        all_trials: list[RecipeTrials],
        update_deadline_s: Callable[[], float],
        decided: Callable[[Comparison], Comparison | None],
    ) -> None:
        """Appends the trials of all admitted comparisons to `all_trials`."""
        waiting, running, paused = list(comparisons), list[Comparison](), list[Comparison]()

        def settle(comparison: Comparison) -> None:
            following = decided(comparison)
            if following is not None:
                waiting.append(following)

        self._start(fixed)
        places = ConcurrencyLimit(
            running,
            max(1, min(MAX_CHALLENGERS, self._pool.num_challengers(len(fixed)))),
            self._num_at_first(comparisons, update_deadline_s()),
            comparisons[0].is_final,
            lambda: self.num_affordable(len(fixed) + len(running), update_deadline_s()),
        )
        while True:
            while len(running) < places.num_open() and (waiting or (paused and _num_racing(running) < FEWEST)):
                comparison = waiting.pop(0) if waiting else _most_promising(paused)
                self._num_trials = len(fixed) + len(running) + 1
                if not self._is_owed(comparison, running) and not self._is_time_for(comparison, update_deadline_s()):
                    comparison.end("undecided")
                    settle(comparison)
                    continue
                has_room = len(running) + 1 < places.num_open()
                self._pool.expect(waiting[0].trials if waiting and has_room else None)
                if self._admit(comparison):
                    running.append(comparison)
                    all_trials.append(comparison.trials)
                else:
                    settle(comparison)
            if all(one.is_control for one in running) and not waiting and not paused:
                break
            if self._is_time_up(running, update_deadline_s()):
                break
            self._run_round(fixed, running)
            places.num_rounds += 1
            for comparison in [one for one in running if one.is_over()]:
                running.remove(comparison)
                self._pool.release(comparison.trials)
                settle(comparison)
            self._rotate(waiting, running, paused, places.num_slots(), update_deadline_s())
            if not waiting:
                self._halve(running, paused)
        for comparison in [*running, *paused, *waiting]:
            self._pool.release(comparison.trials)
            comparison.end("undecided")
            decided(comparison)

    def warm(self, trials: RecipeTrials) -> None:
        """Starts a trial. From then on the backend knows how many trials fit in memory."""
        self._start([trials])

    # --- admission ---------------------------------------------------------------------------------------------------

    def _start(self, fixed: Sequence[RecipeTrials]) -> None:
        for trials, following in itertools.zip_longest(fixed, fixed[1:]):
            self._pool.expect(following)
            failure = self._enter(trials)
            if failure:
                raise RaceError(
                    f"{trials.name} could not be started: {failure}{COPIES if trials.role == 'base' else ''}"
                )

    def _enter(self, trials: RecipeTrials) -> Failure | None:
        start_s, is_new = self._budget.now_s(), trials.trial is None
        failure = self._pool.enter(trials)
        if is_new and not failure:
            self._startups.append((trials.recipe, self._budget.now_s() - start_s))
        self._tell.left(self._budget.left_s())
        return failure

    def _is_owed(self, comparison: Comparison, running: Sequence[Comparison]) -> bool:
        """Whether this control must run, whatever time it takes: the final race needs one."""
        return comparison.is_control and not self._has_control and any(one.is_final for one in running)

    def _is_time_for(self, comparison: Comparison, deadline_s: float) -> bool:
        """Whether there is time to decide the comparison. Otherwise its trial is not started. The final race always
        is."""
        is_new = comparison.trials.trial is None
        need_s = self._doubt_s() if comparison.is_doubtful and is_new else self.need_s(is_new)
        return comparison.is_final or self._budget.now_s() + need_s < deadline_s

    def _doubt_s(self) -> float:
        """The time that it takes to see that a doubtful candidate is too slow."""
        return self._startup_s(self._anchor_recipe) + DOUBTFUL_STEPS * self._step_s

    def need_s(self, is_new: bool = True, recompiled: str = "") -> float:
        """The least time that a comparison takes. `recompiled` names a technique whose setting is new: its first start
        takes as long as the first start of the other setting, because kernels are compiled again."""
        like_first = [seconds for recipe, seconds in self._startups if recipe.setting_of(recompiled) is not None]
        startup_s = max([self._startup_s(self._anchor_recipe), *like_first]) if is_new else 0.0
        return startup_s + MIN_TURN * self._typical_round_s()

    def whole_s(self, num_comparisons: int) -> float:
        """A budget that is enough to race this many comparisons against the base and its control, and to prove the
        best."""
        startup_s, trials = self._startup_s(Recipe()), num_comparisons + 3  # with base, control, and one combination
        racing_s = trials * (startup_s + MIN_TURN * self._typical_timing_s())
        return racing_s / (1.0 - HOPE_SHARE)

    def pass_s(self, recipe: Recipe, num_left: int) -> float:
        """The least time in which the first of `num_left` candidates can take the lead on top of `recipe`."""
        num_starts = min(1, num_left)
        return num_starts * self._startup_s(recipe) + LEADING_ROUNDS * (1 + num_starts) * self._typical_timing_s()

    def _is_time_up(self, running: Sequence[Comparison], deadline_s: float) -> bool:
        """Whether the deadline, with a grace period, has passed. A promising candidate gets a few more rounds, because
        its start-up would be wasted otherwise. The final race gets as many rounds as it needs for any result."""
        grace = GRACE_SHARE if any(one.is_promising() or one.lacks_proof() for one in running) else 0.0
        if any(one.may_take_the_lead() for one in running):
            grace = NEW_GRACE_SHARE
        if any(one.is_final and one.sequence.num_rounds < MIN_ROUNDS for one in running):
            grace = FINAL_GRACE_SHARE
        return self._budget.now_s() >= deadline_s + grace * self._budget.budget_s

    def num_affordable(self, num_fixed: int, deadline_s: float) -> int:
        """The number of challengers that can start and run a turn until the deadline. A few decided candidates are
        better than many undecided ones."""
        turn_s, startup_s = MIN_TURN * self._typical_timing_s(), self._startup_s(self._anchor_recipe)
        left_s = deadline_s - self._budget.now_s() - num_fixed * turn_s
        return int(left_s / (turn_s + startup_s))

    def _num_at_first(self, comparisons: Sequence[Comparison], deadline_s: float) -> int:
        """How many challengers start together. Fewer if starts are expensive: the first candidates are the most
        promising."""
        if comparisons[0].is_final:
            return FEW_AT_FIRST
        left_s = STARTING_SHARE * (deadline_s - self._budget.now_s())
        return max(FEWEST_AT_FIRST, min(FEW_AT_FIRST, int(left_s / max(1e-9, self._startup_s(self._anchor_recipe)))))

    def _startup_s(self, included: Recipe) -> float:
        """The start-up time of one more trial whose recipe includes `included`. Compilation is part of every such
        start. After the first one the compiler's cache saves much of it; the second start shows how much."""
        alike = [seconds for recipe, seconds in self._startups if recipe.holds(included)]
        others = [seconds for recipe, seconds in self._startups if not recipe.holds(included)]
        if len(alike) == 1 and others:
            return min(alike[0], (alike[0] + median(others)) / 2)
        return median(alike[1:] or alike or others or [0.0])

    def _typical_round_s(self) -> float:
        return self._num_trials * self._typical_timing_s()

    def _typical_timing_s(self) -> float:
        if self._timing_s:
            return median(self._timing_s[-9:])
        relaunch_s = self._startup_s(self._anchor_recipe) if self._pool.is_relaunching() else 0.0
        return sum(self._block()) * self._step_s + relaunch_s

    def _admit(self, comparison: Comparison) -> bool:
        """Starts a challenger. False: it has already failed or has no effect."""
        failure = self._enter(comparison.trials)
        if failure:
            anchor_s = typical_step_s(comparison.anchor.timings[-5:]) or self._step_s
            comparison.refuse(failure)
            if comparison.outcome == "slower":
                comparison.add_warm_up(self._pool.record(comparison.trials).timings, anchor_s)
            return False
        if not comparison.has_effect(self._pool.record(comparison.trials)):
            self._pool.leave(comparison.trials)
            return False
        comparison.num_rounds_of_turn = 0
        return True

    def _rotate(
        self,
        waiting: list[Comparison],
        running: list[Comparison],
        paused: list[Comparison],
        num_slots: int,
        deadline_s: float,
    ) -> None:
        """Pauses a candidate that has had its turn, for one that has not raced yet or whose estimate is better."""
        trial = self._trial_rounds()
        for comparison in [one for one in running if one.is_patient and one.num_rounds_of_turn >= trial]:
            if waiting and not comparison.is_promising():
                self._pause(comparison, running, paused)
        turn = self._turn_rounds((len(waiting) + len(running)) / num_slots, deadline_s) if waiting else trial
        for comparison in [one for one in running if one.is_patient and one.num_rounds_of_turn >= turn]:
            best = max((one.optimistic_ratio() for one in paused), default=0.0)
            if waiting or best > BETTER * comparison.optimistic_ratio():
                if not waiting and not self._is_time_for(_peek(paused), deadline_s):
                    return
                self._pause(comparison, running, paused)
                return  # one at a time: the next round shows whether another must be paused

    def _turn_rounds(self, num_turns: float, deadline_s: float) -> int:
        """The rounds in a turn of a promising candidate, while others have not raced yet."""
        rounds = FIRST_PASS * (deadline_s - self._budget.now_s()) / self._typical_round_s()
        return max(MIN_TURN, int(rounds / max(1.0, num_turns)))

    def _trial_rounds(self) -> int:
        """The rounds in a turn of a candidate that is not promising. They take as long as its start did."""
        return max(LEADING_ROUNDS, round(self._startup_s(self._anchor_recipe) / self._typical_timing_s()))

    def _pause(self, comparison: Comparison, running: list[Comparison], paused: list[Comparison]) -> None:
        running.remove(comparison)
        paused.append(comparison)
        self._pool.release(comparison.trials)

    def _halve(self, running: list[Comparison], paused: list[Comparison]) -> None:
        """Pauses the worse half of the candidates until the better half is decided."""
        racing = sorted((one for one in running if one.is_patient), key=Comparison.promise)
        if len(racing) <= FEWEST or min(one.num_rounds_of_turn for one in racing) < HALVING_ROUNDS:
            return
        num_staying = max(FEWEST, (len(racing) + 1) // 2)
        for comparison in racing[: len(racing) - num_staying]:
            self._pause(comparison, running, paused)
        for comparison in racing:
            comparison.num_rounds_of_turn = 0

    # --- a round -----------------------------------------------------------------------------------------------------

    def _run_round(self, fixed: Sequence[RecipeTrials], running: Sequence[Comparison]) -> None:
        all_trials = [*fixed, *(comparison.trials for comparison in running)]
        self._tell.racing([trials.name for trials in all_trials])
        self._num_trials = len(all_trials)
        self._has_control |= any(comparison.is_control for comparison in running)
        self._random.shuffle(all_trials)
        self._round += 1
        num_steps, lead_in = self._blocks = self._block()
        ended = self._catch_up(all_trials, any(comparison.is_final for comparison in running))
        start_s = self._budget.now_s()
        timings = {
            id(trials): ended.get(id(trials)) or self._pool.run_block(trials, self._round, num_steps, lead_in)
            for trials in all_trials
        }
        for trials in fixed:
            self._count_failure(trials, timings[id(trials)])
        self._step_s = typical_step_s(fixed[0].timings[-9:]) or self._step_s
        self._pace_model.add(timings)
        for comparison in running:
            comparison.add(timings)
        self._timing_s.append((self._budget.now_s() - start_s) / len(all_trials))
        self._tell.left(self._budget.left_s())

    def _catch_up(self, all_trials: Sequence[RecipeTrials], is_final: bool) -> dict[int, BlockTiming]:
        """If step times change during the training, step i must be compared with step i. Trials that are behind then
        run uncounted blocks until they have caught up. Returns the last timing of each trial that ended before."""
        times = change_of_all([trials.timings_of_trial for trials in all_trials if trials.trial is not None])
        self.is_slowing |= is_drifting(times) and times > 1.0
        ended: dict[int, BlockTiming] = {}
        if not is_drifting(times, is_final) or self._pool.is_relaunching():
            return ended
        for trials in self._too_far_ahead(all_trials, is_final):
            self._pool.leave(trials)
        farthest, (num_steps, lead_in) = max(trials.age for trials in all_trials), self._block()
        for trials in all_trials:
            while trials.age < farthest and id(trials) not in ended:
                timing = self._pool.run_block(trials, UNCOUNTED, num_steps, lead_in)
                if timing.failure or timing.is_last:
                    ended[id(trials)] = msgspec.structs.replace(timing, is_disturbed=True)
        return ended

    def _too_far_ahead(self, all_trials: Sequence[RecipeTrials], is_final: bool) -> list[RecipeTrials]:
        """The trials that start again, instead of letting the others catch up. In the final race the recipe's trial may
        be the only old one. There, these are the older trials, if starting them takes less time than catching up."""
        ages = [trials.age for trials in all_trials]
        if not is_final:
            most_s = CATCHING_UP_SHARE * self._budget.budget_s
            return [trials for trials in all_trials if (trials.age - min(ages)) * self._step_s > most_s]
        older = [trials for trials in all_trials if trials.age > min(ages)]
        needed_s = sum(max(ages) - age for age in ages) * self._block_plan.step_s  # of the unchanged script
        return older if sum(self._startup_s(trials.recipe) for trials in older) < needed_s else []

    def _block(self) -> tuple[int, int]:
        """The block length, which is the same in all rounds, so that fingerprints of all trials are taken at the same
        steps."""
        if self._blocks is not None:
            return self._blocks
        times = RELAUNCH_BLOCKS if self._pool.is_relaunching() else 1
        return block(msgspec.structs.replace(self._block_plan, step_s=self._step_s), times)

    def _count_failure(self, trials: RecipeTrials, timing: BlockTiming) -> None:
        """Counts failures of an anchor, which is started again with its next block. Raises RaceError after too many."""
        if not timing.failure:
            self._failures.pop(id(trials), None)
            return
        self._failures[id(trials)] = self._failures.get(id(trials), 0) + 1
        if self._failures[id(trials)] >= MAX_FAILURES:
            raise RaceError(f"{trials.name} failed during the race: {timing.failure}")


def _num_racing(running: Sequence[Comparison]) -> int:
    return sum(one.is_patient for one in running)


def _peek(paused: Sequence[Comparison]) -> Comparison:
    return max(paused, key=Comparison.optimistic_ratio)


def _most_promising(paused: list[Comparison]) -> Comparison:
    best = _peek(paused)
    paused.remove(best)
    return best


class ConcurrencyLimit:
    """The number of challengers that may take part in one race at the same time: few at first, and more after some
    rounds or if starts turn out to be cheap."""

    def __init__(
        self,
        running: Sequence[Comparison],
        num_places: int,
        few: int,
        is_final: bool,
        num_affordable: Callable[[], int],
    ) -> None:
        """`num_places`: challengers that fit in memory. `few`: challengers at first. `num_affordable`: further
        challengers that the remaining time allows."""
        self._running = running
        self._num_places = num_places
        self._few = few
        self._most = num_places if is_final else 1
        self._num_affordable = num_affordable
        self.num_rounds = 0

    def num_slots(self) -> int:
        """The number of places that time and memory allow. It never shrinks. It grows if starts turn out to be cheap:
        the very first start reads its files from the disk and takes longest."""
        self._most = max(self._most, min(self._num_places, len(self._running) + self._num_affordable()))
        return self._most

    def num_open(self) -> int:
        """The number of places that are open now. A control that runs alone leaves a place for a candidate: it is only
        useful beside one."""
        number = min(self.num_slots(), self._few * (1 + self.num_rounds // LEADING_ROUNDS))
        is_alone = all(one.is_control for one in self._running)
        return min(self._num_places, max(number, len(self._running) + 1)) if is_alone else number
