"""Selects a recipe in passes. A pass is successive halving over arms on top of the recipe so far, followed by a race
between the best winner and combinations of the winners. If the result changes the step, another pass follows on top of
the result, because a technique that gains nothing in the old step may gain much in the new one."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence

from slipstream.diagnose.gain import OF_INPUT
from slipstream.records import Choice, Recipe, Setting
from slipstream.techniques._core.observation import Observation
from slipstream.tuning import verdicts
from slipstream.tuning.budget import SLOW_START_S, USUAL_PAIRS
from slipstream.tuning.candidates import Arm, Candidate, latecomers, settings_to_race, untried_neighbours
from slipstream.tuning.proof import FUTILE_PAIRS
from slipstream.tuning.rounds import Race
from slipstream.tuning.state import TuningState
from slipstream.tuning.step_drift import is_slowing
from slipstream.tuning.successive_halving import ETA, LEAST_ROUNDS, MOST_ROUNDS, Entry, halve

OTHER_STEP = 0.1  # a recipe with at most this gain has hardly changed the step, so another pass would find nothing new
# The most passes on the unchanged script that end without a recipe. The first of them is repeated, because small gains
# show only over several processes.
MOST_FAILED = 2
ROUNDS = LEAST_ROUNDS * ETA  # rounds of a race between a few recipes; the second rung has at least this many rounds
# The anchor is the trial that the others of a race are compared with. An arm whose log ratio against the anchor is
# below this one does not race in later passes, because another recipe is unlikely to make the arm faster.
HOPELESS = math.log(0.75)
# A setting with one of these causes in its verdict does not race again, whatever the recipe is.
_FINAL = ("failed", "declined", "no_effect", "unsound", "never_pays", "opt_in")


class Selection:
    """The passes of a tuning."""

    def __init__(self, state: TuningState, candidates: Sequence[Candidate]) -> None:
        self._state = state
        self._candidates = list(candidates)
        self.seen: dict[Choice, float] = {}  # the last log ratio of each choice against the anchor of its race
        self._out: set[Choice] = set()  # choices that do not race again
        self._entries: dict[tuple[Recipe, Choice], Entry] = {}  # by the recipe so far and the choice
        self._is_slowing = False
        # The combination of all winners of the last pass on the unchanged script, with its gain, if the race in new
        # processes confirmed none of them. The proof then compares the combination with the base, because with small
        # gains noise may choose the wrong winner.
        self._hopeful: tuple[Recipe, float] | None = None

    def run(self) -> None:
        """Runs the passes. Afterwards the state contains the best recipe."""
        try:
            self._run_passes()
        finally:
            self._report_not_raced()

    def _run_passes(self) -> None:
        state = self._state
        ground = [one for one in self._candidates if one.card.is_ground and one.first not in self._out]
        arms = [self._arm(one, one.settings[0]) for one in ground if not state.recipe.choices]
        is_time = 2 * state.costs.pass_s(1, 2) < state.budget.selection_end_s() - state.budget.now_s()
        if arms and is_time and self._pass(arms, least_gain=0.0, is_ground=True):
            state.note(f"{state.recipe} comes first: the other techniques are raced on top of it.")
        num_failed, first = 0, state.recipe
        while self._is_other_step(first) and (arms := self._arms()):
            if self._pass(arms, least_gain=math.log1p(state.order.margin)):
                state.remember_pass(is_last=False)
                continue
            num_failed += 1
            if state.recipe.choices or num_failed == MOST_FAILED or not self._is_time_for(arms):
                break
        if not state.recipe.choices and self._hopeful is not None:
            state.adopt(*self._hopeful)
            for choice in state.recipe.choices:
                state.revise(choice, decision="kept", cause="gains")

    def set_aside(self, recipe: Recipe) -> None:
        """Excludes a recipe whose proof failed. If the recipe has several techniques, the best single technique may
        still gain, so it becomes the recipe. If the recipe has one technique, the recipe becomes empty, and later
        passes do not race this technique with this setting again."""
        state, choices = self._state, recipe.choices
        best = max(choices, key=lambda choice: self.seen.get(choice, 0.0)) if len(choices) > 1 else None
        for choice in choices:
            if choice != best:
                state.revise(choice, decision="rejected", cause="not_again")
        if best is not None:
            state.adopt(Recipe((best,)), self.seen.get(best, 0.0))
        else:
            self._out |= set(choices)
            self._hopeful = None
            state.adopt(Recipe(), None)

    def is_time(self) -> bool:
        """Whether there is time for a proof of FUTILE_PAIRS pairs and, if the recipe is empty, for a pass before the
        proof. A default budget is extended for both."""
        state, pass_s = self._state, 0.0
        if not state.recipe.choices:
            num_arms = len(self._arms())
            pass_s = state.costs.pass_s(num_arms, 2) if num_arms else math.inf
        state.budget.extend(pass_s + USUAL_PAIRS * state.costs.pair_s())
        return pass_s + FUTILE_PAIRS * state.costs.pair_s() < state.budget.left_s()

    def _is_other_step(self, first: Recipe) -> bool:
        """Whether another pass may find something new. It may if the recipe is still `first`, or if the recipe has
        changed the step so much that other techniques may gain."""
        state = self._state
        return state.recipe == first or state.estimates[state.recipe] > math.log1p(OTHER_STEP)

    # --- arms ---------------------------------------------------------------------------------------------------------

    def _arm(self, candidate: Candidate, setting: Setting) -> Arm:
        choice = Choice(candidate.technique, setting)
        return Arm(candidate, choice, self._state.recipe.plus(choice))

    def _arms(self) -> list[Arm]:
        """Returns the arms of the next pass, the most promising first. The first settings of all techniques come before
        the second ones."""
        state, recipe = self._state, self._state.recipe
        out = {choice.technique for choice in self._out}
        late = latecomers(Observation(state.session, self._is_slowing), state.order, state.techniques, recipe, out)
        known = {one.technique: one for one in self._candidates}
        known |= {one.technique: one for one in late if one.technique not in known}
        by_rank: list[list[Arm]] = [[], []]
        for candidate in known.values():
            for rank, setting in enumerate(self._settings(candidate)):
                by_rank[rank].append(self._arm(candidate, setting))
        return [arm for arms in by_rank for arm in arms]

    def _settings(self, candidate: Candidate) -> list[Setting]:
        """Returns the settings of a technique to race in the next pass. If the recipe contains the technique, these are
        untried neighbours of its setting. There are none if the technique conflicts with the recipe."""
        name, recipe = candidate.technique, self._state.recipe
        if self._state.conflict(name, recipe) is not None:
            return []
        seen = {choice.setting: gain for choice, gain in self.seen.items() if choice.technique == name}
        now = recipe.setting_of(name)
        out = {choice.setting for choice in self._out if choice.technique == name}
        out |= {setting for setting, gain in seen.items() if gain < HOPELESS}
        if now is not None:
            return [setting for setting in untried_neighbours(candidate, now, seen) if setting not in out]
        return [setting for setting in settings_to_race(candidate, seen) if setting not in out]

    def _affordable(self, arms: Sequence[Arm]) -> list[Arm]:
        """Returns the first arms, as many as fit in half of the time of the selection, because a second pass follows on
        top of the winners. Up to one arm of each technique may use the whole time of the selection."""
        state = self._state
        left_s = state.budget.selection_end_s() - state.budget.now_s()
        number = state.costs.num_affordable(left_s, num_fixed=2)
        techniques = {arm.choice.technique for arm in arms}
        both = state.costs.num_affordable(left_s / 2, num_fixed=2)
        has_raced = any(not entry.arm.candidate.card.is_ground for entry in self._entries.values())
        least = 0 if has_raced else 1  # even with little time one arm is raced
        return list(arms[: max(both, min(number, len(techniques)), least)])

    def _is_time_for(self, arms: Sequence[Arm]) -> bool:
        state = self._state
        return state.budget.now_s() + state.costs.pass_s(len(arms), 2) < state.budget.selection_end_s()

    def _first_rounds(self, num_arms: int, num_late: int) -> int:
        """Returns the number of rounds of the first rung, which is at least LEAST_ROUNDS. With a larger number the pass
        takes at most half of the time that remains after the starts of `num_late` slow arms."""
        state = self._state
        left_s = state.budget.selection_end_s() - state.budget.now_s() - num_late * SLOW_START_S
        affordable = (
            number
            for number in range(MOST_ROUNDS, LEAST_ROUNDS, -1)
            if state.costs.pass_s(num_arms, 2, number) <= left_s / 2
        )
        return next(affordable, LEAST_ROUNDS)

    # --- a pass -------------------------------------------------------------------------------------------------------

    def _pass(self, arms: Sequence[Arm], least_gain: float, is_ground: bool = False) -> bool:
        """Races arms on top of the recipe so far. Returns whether this leads to a new recipe."""
        state = self._state
        anchor = state.recipe
        quick = self._affordable([arm for arm in arms if not arm.candidate.card.is_slow_to_start])
        slow = [arm for arm in arms if arm.candidate.card.is_slow_to_start]
        entries, late = ([self._entry(arm) for arm in arms] for arms in (quick, slow))
        if not entries and not (late and self._is_time_for_slow()):
            return False
        first_rounds = LEAST_ROUNDS if is_ground else self._first_rounds(len(entries), len(late))
        finalists = halve(entries, late, first_rounds, functools.partial(self._race, anchor))
        raced = [entry for entry in (*entries, *late) if entry.gains or entry.failure or entry.inert]
        winners = self._judge(anchor, raced, finalists, least_gain)
        if winners and is_ground:  # the winner needs no gain above the margin; the ablation may remove it later
            assert winners[0].gain is not None
            state.adopt(winners[0].recipe, winners[0].gain)
            return True
        return bool(winners) and self._take(anchor, winners, least_gain)

    def _entry(self, arm: Arm) -> Entry:
        """Returns the entry of an arm. If a pass is repeated on the same recipe, the entry keeps its earlier gains."""
        return self._entries.setdefault((self._state.recipe, arm.choice), Entry(arm, self._state.trials(arm.recipe)))

    def _is_time_for_slow(self) -> bool:
        budget = self._state.budget
        return budget.selection_end_s() - budget.now_s() > SLOW_START_S

    def _race(self, anchor: Recipe, going: Sequence[Entry], num_rounds: int) -> None:
        """Races the entries of one rung against the anchor."""
        state = self._state
        left_s = state.budget.selection_end_s() - state.budget.now_s()
        if left_s < state.costs.race_s(2, 1) and any(entry.gains for entry in going):
            return  # there is no time for this rung, and earlier rungs have ranked the arms
        fixed = [] if anchor.choices else [state.control]
        if not self._is_time_for_slow():
            going = [entry for entry in going if entry.gains or not entry.arm.candidate.card.is_slow_to_start]
        others = [*fixed, *(entry.trials for entry in going)]
        base = state.trials(anchor)
        race = state.runner.race(base, others, num_rounds, state.budget.selection_end_s())
        for entry in going:
            entry.failure, entry.inert = race.failures.get(id(entry.trials)), race.inert.get(id(entry.trials))
            gain = race.gain(entry.trials, base)
            if gain is not None:
                entry.gains = [*entry.gains, (gain, len(race.log_ratios(entry.trials, base)))]
        self._note_control(race, anchor)

    def _note_control(self, race: Race, anchor: Recipe) -> None:
        state = self._state
        self._is_slowing |= is_slowing(state.trials(anchor).timings_of_trial)
        gain = race.gain(state.control, state.base)
        if gain is not None:
            state.control_gains.append(gain)
            state.numerics_check.control = state.control

    def _judge(
        self, anchor: Recipe, raced: Sequence[Entry], finalists: Sequence[Entry], least_gain: float
    ) -> list[Entry]:
        """Stores a verdict on every arm. Returns the winners, best first: at most one setting of each technique."""
        state, winners = self._state, list[Entry]()
        for entry in (*finalists, *(entry for entry in raced if entry not in finalists)):
            verdict = verdicts.of_arm(state, entry, anchor, least_gain)
            is_rival = any(entry.arm.choice.technique == winner.arm.choice.technique for winner in winners)
            if verdict.cause == "gains" and is_rival:
                verdict = verdicts.outpaced(verdict)
            if verdict.cause == "gains":
                numerics = verdicts.judge_numerics(state, entry.trials, state.budget.selection_end_s())
                # Without time for the controls, the proof checks the numerics of the recipe.
                is_put_off = numerics.basis == "no_time"
                verdict = verdict if is_put_off else verdicts.with_numerics(verdict, numerics)
            if verdict.cause == "gains":
                winners.append(entry)
            self._remember(entry, is_out=verdict.cause in _FINAL)
            state.decide(verdict)
            state.pool.leave(entry.trials)
        return winners

    def _remember(self, entry: Entry, is_out: bool) -> None:
        if entry.gain is not None:
            self.seen[entry.arm.choice] = entry.gain
        if is_out:
            self._out.add(entry.arm.choice)

    # --- combination --------------------------------------------------------------------------------------------------

    def _take(self, anchor: Recipe, winners: Sequence[Entry], least_gain: float) -> bool:
        """Races the best winner and two combinations of winners in new processes. A combination leaves out winners that
        conflict with better ones. The first combination has all other winners. The second has only one technique for
        the input, because techniques for the input save the same milliseconds. The fastest of the three becomes the
        recipe if it gains in this race too. Returns whether the recipe changed."""
        state, best = self._state, winners[0]
        whole, together = best.recipe, [best]
        one_input, has_input = best.recipe, _is_for_input(best)
        for winner in winners[1:]:
            conflict = state.conflict(winner.arm.choice.technique, whole)
            if conflict is not None:
                state.revise(winner.arm.choice, decision="rejected", cause="conflict", other=str(conflict))
                continue
            whole, together = whole.plus(winner.arm.choice), [*together, winner]
            if not (has_input and _is_for_input(winner)):
                one_input = one_input.plus(winner.arm.choice)
            has_input |= _is_for_input(winner)
        recipes = list(dict.fromkeys((best.recipe, one_input, whole)))
        is_time = state.costs.race_s(len(recipes) + 1, 1) < state.budget.selection_end_s() - state.budget.now_s()
        # Without time for this race, the proof decides about all winners together.
        gains = self._race_winners(anchor, recipes, least_gain) if is_time else {whole: best.gain or 0.0}
        taken = max(gains, key=lambda recipe: gains[recipe], default=anchor)
        if taken not in (anchor, best.recipe):
            numerics = verdicts.judge_numerics(state, state.trials(taken), state.budget.selection_end_s())
            taken = taken if numerics.is_sound or numerics.basis == "no_time" else best.recipe
        if best.recipe in gains:  # corrects the figure, because the gain of a winner is overestimated on average
            again = gains[best.recipe]
            speed = verdicts.estimate(state.estimates.get(anchor, 0.0) + again)
            state.revise(best.arm.choice, own_ratio=math.exp(again), speed=speed)
        gain = gains.get(taken, -math.inf)
        for winner in together:
            if gain <= least_gain:
                state.revise(winner.arm.choice, decision="rejected", cause="not_again")
            elif winner.arm.choice not in taken.choices:
                state.revise(winner.arm.choice, decision="rejected", cause="not_together", other=str(best.arm.choice))
        if gain <= least_gain:
            if not anchor.choices:
                self._hopeful = whole, max(gain, 0.0)
            return False
        state.adopt(taken, state.estimates.get(anchor, 0.0) + gain)
        return True

    def _race_winners(self, anchor: Recipe, recipes: Sequence[Recipe], least_gain: float) -> dict[Recipe, float]:
        """Returns the log ratio of each recipe against the anchor. Recipes that failed or changed nothing are left
        out."""
        state, by_recipe = self._state, {recipe: self._state.trials(recipe) for recipe in recipes}

        def is_enough(race: Race) -> bool:
            return all(race.is_clear(trials, state.trials(anchor), least_gain) for trials in by_recipe.values())

        deadline_s = state.budget.selection_end_s()
        race = state.runner.race(state.trials(anchor), list(by_recipe.values()), ROUNDS, deadline_s, is_enough)
        gains = {recipe: race.gain(trials, state.trials(anchor)) for recipe, trials in by_recipe.items()}
        for trials in by_recipe.values():
            state.pool.leave(trials)
        failed = {
            id(trials) for trials in by_recipe.values() if id(trials) in race.failures or id(trials) in race.inert
        }
        return {one: gain for one, gain in gains.items() if gain is not None and id(by_recipe[one]) not in failed}

    def _report_not_raced(self) -> None:
        state = self._state
        raced: Collection[str] = {verdict.technique for verdict in state.verdicts if verdict.kind == "single"}
        for candidate in self._candidates:
            if candidate.technique not in raced:
                state.decide(verdicts.not_raced(candidate.first))


def _is_for_input(entry: Entry) -> bool:
    return any(cause in OF_INPUT for cause in entry.arm.candidate.card.causes)
