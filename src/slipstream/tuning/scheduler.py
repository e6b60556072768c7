"""Riders that share a baton: rounds in random order, each comparison ended as soon as it is decided, its place given to
the next. Proposes nothing and remembers nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence

import msgspec

from slipstream.diagnose.statistics import median
from slipstream.records import BlockTiming, Recipe
from slipstream.tuning.block_length import BlockPlan, block, typical_step_s
from slipstream.tuning.budget import HOPE_SHARE, Budget
from slipstream.tuning.comparison import LEADING_ROUNDS, MIN_ROUNDS, Comparison
from slipstream.tuning.concurrency import ConcurrencyLimit
from slipstream.tuning.pace_model import PaceModel
from slipstream.tuning.progress import ProgressListener
from slipstream.tuning.step_drift import change_of_all, is_ageing
from slipstream.tuning.trials import RaceError, RecipeTrials, TrialPool

MAX_CHALLENGERS = 8  # they share one base; noise lasts a second, so a longer round pairs hardly worse
FEW_AT_FIRST = 4  # start together; so many more follow as long as none of those leads: a start costs many rounds
STARTING_SHARE = 0.25  # of the time that is left, for those who start together
RELAUNCH_BLOCKS = 8  # a launch costs more than a block: ride that much longer
MAX_DEATHS = 2  # of an anchor, one after the other
MIN_TURN = 10  # rounds: fewer decide nothing
HALVING_ROUNDS = 16  # after so many the worse half of those undecided waits
FEWEST = 3  # that go on
FEWEST_AT_FIRST = 2
DOUBTFUL_STEPS = 30  # of the base: as long as the few first ones of a rider that is ten times as slow
FIRST_PASS = 0.6  # of the time: then the most promising of those undecided come back
GRACE_SHARE = 0.05  # of the budget, beyond a deadline
NEW_GRACE_SHARE = 0.1  # for one whose start took longer than was foreseen, so that it may take the lead
FINAL_GRACE_SHARE = 0.25
CATCHING_UP_SHARE = 0.05  # of the budget: who is farther ahead than that starts anew with the others
COPIES = ". Copies of the script race side by side, without a standard input: it must not ask, nor open a fixed port"
UNCOUNTED = -1  # the round of a block that is ridden to catch up
BETTER = 1.01  # a benched candidate returns for one on the track only if it looks better by so much


class RaceScheduler:
    """All heats of a tuning: rounds are numbered through."""

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
        self._step_s = block_plan.step_s  # of the anchor: what the check said, then what was timed
        self._pace_model = pace_model
        self._round = 0
        self._blocks: tuple[int, int] | None = None  # steps and lead-in, once a round was ridden
        self._timing_s: list[float] = []
        self._num_trials = 2  # of a round
        self._has_control = False  # has ridden
        self._startups: list[tuple[Recipe, float]] = []  # of whom, and the seconds
        self._footing = Recipe()  # what those who race now have in common
        self._deaths: dict[int, int] = {}
        self.is_slowing = False  # the steps of this script grow longer as it trains, as far as was seen

    def race(
        self,
        comparisons: Sequence[Comparison],
        deadline_s: Callable[[], float],
        settle: Callable[[Comparison], Comparison | None],
        companions: Iterable[RecipeTrials] = (),
    ) -> None:
        """Until every contest is decided or the time is over. `settle` hears of each as it is decided, and may give one
        that is to be raced too. Contests of one heat share an anchor; companions ride along, so that others can be
        compared with them too. Raises RaceError if one of these does not stay in the race."""
        if not comparisons:
            return
        fixed, all_trials = list(dict.fromkeys([comparisons[0].anchor, *companions])), list[RecipeTrials]()
        self._footing = comparisons[0].anchor.recipe
        try:
            self._race(comparisons, fixed, all_trials, deadline_s, settle)
        finally:
            for trials in [*fixed, *all_trials]:
                self._pool.release(trials)
            self._tell.racing([])

    def _race(
        self,
        comparisons: Sequence[Comparison],
        fixed: Sequence[RecipeTrials],
        all_trials: list[RecipeTrials],
        deadline_s: Callable[[], float],
        decided: Callable[[Comparison], Comparison | None],
    ) -> None:
        """`seats` learns who was let in."""
        waiting, riding, benched = list(comparisons), list[Comparison](), list[Comparison]()

        def settle(comparison: Comparison) -> None:
            following = decided(comparison)
            if following is not None:
                waiting.append(following)

        self._start(fixed)
        places = ConcurrencyLimit(
            riding,
            max(1, min(MAX_CHALLENGERS, self._pool.num_challengers(len(fixed)))),
            self._num_at_first(comparisons, deadline_s()),
            comparisons[0].is_final,
            lambda: self.num_affordable(len(fixed) + len(riding), deadline_s()),
        )
        while True:
            while len(riding) < places.num_open() and (waiting or (benched and _num_racing(riding) < FEWEST)):
                comparison = waiting.pop(0) if waiting else _most_promising(benched)
                self._num_trials = len(fixed) + len(riding) + 1
                if not self._is_owed(comparison, riding) and not self._is_time_for(comparison, deadline_s()):
                    comparison.end("undecided")
                    settle(comparison)
                    continue
                has_room = len(riding) + 1 < places.num_open()
                self._pool.expect(waiting[0].trials if waiting and has_room else None)
                if self._admit(comparison):
                    riding.append(comparison)
                    all_trials.append(comparison.trials)
                else:
                    settle(comparison)
            if all(one.is_control for one in riding) and not waiting and not benched:
                break
            if self._is_time_up(riding, deadline_s()):
                break
            self._ride(fixed, riding)
            places.num_rounds += 1
            for comparison in [one for one in riding if one.is_over()]:
                riding.remove(comparison)
                self._pool.release(comparison.trials)
                settle(comparison)
            self._rotate(waiting, riding, benched, places.num_slots(), deadline_s())
            if not waiting:
                self._halve(riding, benched)
        for comparison in [*riding, *benched, *waiting]:
            self._pool.release(comparison.trials)
            comparison.end("undecided")
            decided(comparison)

    def warm(self, trials: RecipeTrials) -> None:
        """On the track: from here on the track knows how many riders it holds."""
        self._start([trials])

    # --- who rides ---------------------------------------------------------------------------------------------------

    def _start(self, fixed: Sequence[RecipeTrials]) -> None:
        for trials, following in itertools.zip_longest(fixed, fixed[1:]):
            self._pool.expect(following)
            failure = self._enter(trials)
            if failure:
                raise RaceError(
                    f"{trials.name} could not be started: {failure}{COPIES if trials.role == 'base' else ''}"
                )

    def _enter(self, trials: RecipeTrials) -> str:
        start_s, is_new = self._budget.now_s(), trials.trial is None
        failure = self._pool.enter(trials)
        if is_new and not failure:
            self._startups.append((trials.recipe, self._budget.now_s() - start_s))
        self._tell.left(self._budget.left_s())
        return failure

    def _is_owed(self, comparison: Comparison, riding: Sequence[Comparison]) -> bool:
        """There is no promise without a control, whatever time it takes."""
        return comparison.is_control and not self._has_control and any(one.is_final for one in riding)

    def _is_time_for(self, comparison: Comparison, deadline_s: float) -> bool:
        """A rider that would be stopped before it can be decided is not launched at all; the whole recipe always is."""
        is_new = comparison.trials.trial is None
        need_s = self._doubt_s() if comparison.is_doubtful and is_new else self.need_s(is_new)
        return comparison.is_final or self._budget.now_s() + need_s < deadline_s

    def _doubt_s(self) -> float:
        """What it takes to see that one is out of the question."""
        return self._startup_s(self._footing) + DOUBTFUL_STEPS * self._step_s

    def need_s(self, is_new: bool = True, anew: str = "") -> float:
        """The least that a contest takes; of another setting of that technique, `anew`: what the first start with it
        made and later ones found ready, compiled kernels, must be made once more."""
        like_first = [seconds for recipe, seconds in self._startups if recipe.setting_of(anew) is not None]
        startup_s = max([self._startup_s(self._footing), *like_first]) if is_new else 0.0
        return startup_s + MIN_TURN * self._typical_round_s()

    def whole_s(self, num_comparisons: int) -> float:
        """A budget in which so many could be raced against the base and its control, and the best of them proved."""
        startup_s, trials = self._startup_s(Recipe()), num_comparisons + 3  # the base, its control, one on the ground
        racing_s = trials * (startup_s + MIN_TURN * self._typical_timing_s())
        return racing_s / (1.0 - HOPE_SHARE)

    def pass_s(self, footing: Recipe, num_left: int) -> float:
        """The least in which the first of them can take the lead on top of that."""
        num_starts = min(1, num_left)
        return num_starts * self._startup_s(footing) + LEADING_ROUNDS * (1 + num_starts) * self._typical_timing_s()

    def _is_time_up(self, riding: Sequence[Comparison], deadline_s: float) -> bool:
        """Who looks like a winner gets a few rounds more: its start-up is paid, and not to know would waste it. The
        whole recipe gets what it takes to say anything at all."""
        grace = GRACE_SHARE if any(one.is_promising() or one.lacks_proof() for one in riding) else 0.0
        if any(one.may_take_the_lead() for one in riding):
            grace = NEW_GRACE_SHARE
        if any(one.is_final and one.sequence.num_rounds < MIN_ROUNDS for one in riding):
            grace = FINAL_GRACE_SHARE
        return self._budget.now_s() >= deadline_s + grace * self._budget.budget_s

    def num_affordable(self, num_fixed: int, deadline_s: float) -> int:
        """Challengers that can be started and ride a turn in this time: a few that are decided rather than many that
        are not."""
        turn_s, startup_s = MIN_TURN * self._typical_timing_s(), self._startup_s(self._footing)
        left_s = deadline_s - self._budget.now_s() - num_fixed * turn_s
        return int(left_s / (turn_s + startup_s))

    def _num_at_first(self, comparisons: Sequence[Comparison], deadline_s: float) -> int:
        """Fewer where starts are dear: the first come first for a reason."""
        if comparisons[0].is_final:
            return FEW_AT_FIRST
        left_s = STARTING_SHARE * (deadline_s - self._budget.now_s())
        return max(FEWEST_AT_FIRST, min(FEW_AT_FIRST, int(left_s / max(1e-9, self._startup_s(self._footing)))))

    def _startup_s(self, footing: Recipe) -> float:
        """Of one more rider on top of that: what is compiled in it is compiled for every one. After the first of them
        the compiler finds much of it ready: how much, the second shows."""
        alike = [seconds for recipe, seconds in self._startups if recipe.holds(footing)]
        others = [seconds for recipe, seconds in self._startups if not recipe.holds(footing)]
        if len(alike) == 1 and others:
            return min(alike[0], (alike[0] + median(others)) / 2)
        return median(alike[1:] or alike or others or [0.0])

    def _typical_round_s(self) -> float:
        return self._num_trials * self._typical_timing_s()

    def _typical_timing_s(self) -> float:
        if self._timing_s:
            return median(self._timing_s[-9:])
        relaunch_s = self._startup_s(self._footing) if self._pool.is_relaunching() else 0.0
        return sum(self._block()) * self._step_s + relaunch_s

    def _admit(self, comparison: Comparison) -> bool:
        """False: it is out already."""
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
        riding: list[Comparison],
        benched: list[Comparison],
        num_slots: int,
        deadline_s: float,
    ) -> None:
        """Whoever has had its turn makes room for one that has not raced yet, or that looks better."""
        trial = self._trial_rounds()
        for comparison in [one for one in riding if one.is_patient and one.num_rounds_of_turn >= trial]:
            if waiting and not comparison.is_promising():
                self._bench(comparison, riding, benched)
        turn = self._turn_rounds((len(waiting) + len(riding)) / num_slots, deadline_s) if waiting else trial
        for comparison in [one for one in riding if one.is_patient and one.num_rounds_of_turn >= turn]:
            best = max((one.training_time() for one in benched), default=0.0)
            if waiting or best > BETTER * comparison.training_time():
                if not waiting and not self._is_time_for(_peek(benched), deadline_s):
                    return
                self._bench(comparison, riding, benched)
                return  # one at a time: the next round shows whether another must

    def _turn_rounds(self, num_turns: float, deadline_s: float) -> int:
        """For one that looks like a gain, while others have not raced yet."""
        rounds = FIRST_PASS * (deadline_s - self._budget.now_s()) / self._typical_round_s()
        return max(MIN_TURN, int(rounds / max(1.0, num_turns)))

    def _trial_rounds(self) -> int:
        """For one that does not look like a gain: they take as long as its start did."""
        return max(LEADING_ROUNDS, round(self._startup_s(self._footing) / self._typical_timing_s()))

    def _bench(self, comparison: Comparison, riding: list[Comparison], benched: list[Comparison]) -> None:
        riding.remove(comparison)
        benched.append(comparison)
        self._pool.release(comparison.trials)

    def _halve(self, riding: list[Comparison], benched: list[Comparison]) -> None:
        """Rounds are worth most to those that look best: the others wait on the bench until these are decided."""
        racing = sorted((one for one in riding if one.is_patient), key=Comparison.promise)
        if len(racing) <= FEWEST or min(one.num_rounds_of_turn for one in racing) < HALVING_ROUNDS:
            return
        num_staying = max(FEWEST, (len(racing) + 1) // 2)
        for comparison in racing[: len(racing) - num_staying]:
            self._bench(comparison, riding, benched)
        for comparison in racing:
            comparison.num_rounds_of_turn = 0

    # --- a round -----------------------------------------------------------------------------------------------------

    def _ride(self, fixed: Sequence[RecipeTrials], riding: Sequence[Comparison]) -> None:
        all_trials = [*fixed, *(comparison.trials for comparison in riding)]
        self._tell.racing([trials.name for trials in all_trials])
        self._num_trials = len(all_trials)
        self._has_control |= any(comparison.is_control for comparison in riding)
        self._random.shuffle(all_trials)
        self._round += 1
        num_steps, lead_in = self._blocks = self._block()
        fallen = self._catch_up(all_trials, any(comparison.is_final for comparison in riding))
        start_s = self._budget.now_s()
        timings = {
            id(trials): fallen.get(id(trials)) or self._pool.run_block(trials, self._round, num_steps, lead_in)
            for trials in all_trials
        }
        for trials in fixed:
            self._survive(trials, timings[id(trials)])
        self._step_s = typical_step_s(fixed[0].timings[-9:]) or self._step_s
        self._pace_model.add(timings)
        for comparison in riding:
            comparison.add(timings)
        self._timing_s.append((self._budget.now_s() - start_s) / len(all_trials))
        self._tell.left(self._budget.left_s())

    def _catch_up(self, all_trials: Sequence[RecipeTrials], is_final: bool) -> dict[int, BlockTiming]:
        """Step i is compared with step i, where steps change as the training goes on: who has come less far than
        another rides up to it, and nothing of that counts. Gives the last lap of who did not get there."""
        times = change_of_all([trials.timings_of_trial for trials in all_trials if trials.trial is not None])
        self.is_slowing |= is_ageing(times) and times > 1.0
        fallen: dict[int, BlockTiming] = {}
        if not is_ageing(times, is_final) or self._pool.is_relaunching():
            return fallen
        for trials in self._too_far_ahead(all_trials, is_final):
            self._pool.leave(trials)
        farthest, (num_steps, lead_in) = max(trials.age for trials in all_trials), self._block()
        for trials in all_trials:
            while trials.age < farthest and id(trials) not in fallen:
                timing = self._pool.run_block(trials, UNCOUNTED, num_steps, lead_in)
                if timing.failure or timing.is_last:
                    fallen[id(trials)] = msgspec.structs.replace(timing, is_disturbed=True)
        return fallen

    def _too_far_ahead(self, all_trials: Sequence[RecipeTrials], is_final: bool) -> list[RecipeTrials]:
        """Who starts anew with the others. The last race begins with fresh ones, and the whole recipe's rider may be
        the only old one: there, the older ones if their starts take less time than the others need to come up."""
        ages = [trials.age for trials in all_trials]
        if not is_final:
            most_s = CATCHING_UP_SHARE * self._budget.budget_s
            return [trials for trials in all_trials if (trials.age - min(ages)) * self._step_s > most_s]
        older = [trials for trials in all_trials if trials.age > min(ages)]
        needed_s = sum(max(ages) - age for age in ages) * self._block_plan.step_s  # of the script as it is
        return older if sum(self._startup_s(trials.recipe) for trials in older) < needed_s else []

    def _block(self) -> tuple[int, int]:
        """The same from the first round to the last, so that whoever comes late is witnessed at the base's steps."""
        if self._blocks is not None:
            return self._blocks
        times = RELAUNCH_BLOCKS if self._pool.is_relaunching() else 1
        return block(msgspec.structs.replace(self._block_plan, step_s=self._step_s), times)

    def _survive(self, trials: RecipeTrials, timing: BlockTiming) -> None:
        """An anchor that died is started again with its next block, but not for ever."""
        if not timing.failure:
            self._deaths.pop(id(trials), None)
            return
        self._deaths[id(trials)] = self._deaths.get(id(trials), 0) + 1
        if self._deaths[id(trials)] >= MAX_DEATHS:
            raise RaceError(f"{trials.name} did not stay in the race: {timing.failure}")


def _num_racing(riding: Sequence[Comparison]) -> int:
    return sum(one.is_patient for one in riding)


def _peek(benched: Sequence[Comparison]) -> Comparison:
    return max(benched, key=Comparison.training_time)


def _most_promising(benched: list[Comparison]) -> Comparison:
    best = _peek(benched)
    benched.remove(best)
    return best
