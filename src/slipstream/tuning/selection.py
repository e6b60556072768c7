"""Selects a recipe in passes. A pass is successive halving over arms on top of the recipe so far; the combination of
its winners is raced against the best single one. Another pass follows on top of the result, because a technique that
gains nothing in a step that computes may gain much in a step that waits, and the other way round."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from slipstream.records import Choice, Recipe, Setting
from slipstream.techniques._core.observation import Observation
from slipstream.tuning import verdicts
from slipstream.tuning.budget import PROOF_SHARE
from slipstream.tuning.candidates import Arm, Candidate, latecomers, settings_to_race, untried_neighbours
from slipstream.tuning.rounds import Race
from slipstream.tuning.state import TuningState
from slipstream.tuning.step_drift import is_slowing
from slipstream.tuning.successive_halving import ETA, FIRST_ROUNDS, Entry, halve
from slipstream.tuning.trials import RecipeTrials

ROUNDS = FIRST_ROUNDS * ETA  # of a race between a few recipes, as on the second rung
# Share of the budget up to which an arm that takes long to start is raced. Its first start compiles.
LATE_SHARE = 0.5
# An arm that was this much slower in an earlier pass does not race again: what it lost then would have to be less than
# a quarter of what the recipe saved.
HOPELESS = math.log(0.75)
# Causes for which a setting does not race again, whatever the recipe is.
_FINAL = ("failed", "declined", "no_effect", "unsound", "never_pays", "opt_in")


class Selection:
    """The passes of a tuning."""

    def __init__(self, state: TuningState, candidates: Sequence[Candidate]) -> None:
        self._state = state
        self._candidates = list(candidates)
        self.seen: dict[Choice, float] = {}  # the last log ratio of each choice against what it was raced on
        self._out: set[Choice] = set()  # failed, unsound, or without effect
        self._is_slowing = False
        self.singles: list[Recipe] = []  # the best recipe of the first pass that has one technique more

    def run(self) -> None:
        """Leaves the best recipe in the state."""
        state = self._state
        ground = [one for one in self._candidates if one.card.is_ground]
        if ground and self._pass([self._arm(one, one.settings[0]) for one in ground], least_gain=0.0):
            state.note(f"{state.recipe} comes first: the other techniques are raced on top of it.")
        while arms := self._arms():
            if not self._pass(arms, least_gain=math.log1p(state.order.margin)):
                break
            state.journal.remember_pass(state.recipe, state.estimates[state.recipe], state.verdicts, is_last=False)
        self._report_not_raced()

    # --- arms ---------------------------------------------------------------------------------------------------------

    def _arm(self, candidate: Candidate, setting: Setting) -> Arm:
        choice = Choice(candidate.technique, setting)
        return Arm(candidate, choice, self._state.recipe.plus(choice))

    def _arms(self) -> list[Arm]:
        """The arms of the next pass, the most promising first. First settings come before second ones."""
        state, recipe = self._state, self._state.recipe
        out = {choice.technique for choice in self._out}
        late = latecomers(Observation(state.session, self._is_slowing), state.order, state.techniques, recipe, out)
        known = {one.technique: one for one in (*late, *self._candidates)}
        by_rank: list[list[Arm]] = [[], []]
        for candidate in known.values():
            for rank, setting in enumerate(self._settings(candidate)):
                by_rank[rank].append(self._arm(candidate, setting))
        return [arm for arms in by_rank for arm in arms]

    def _settings(self, candidate: Candidate) -> list[Setting]:
        """The settings to race in the next pass. Of a technique in the recipe these are neighbours of its setting."""
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
        """As many arms as the time is enough for. Time is never spread over more arms than it can decide. With time for
        two passes, one of them is kept back for what helps on top of the first one's winners."""
        state = self._state
        left_s = state.budget.end_s(PROOF_SHARE) - state.budget.now_s()
        number = state.costs.num_affordable(left_s, num_fixed=2)
        techniques = {arm.choice.technique for arm in arms}
        both = state.costs.num_affordable(left_s / 2, num_fixed=2)
        return list(arms[: max(both, min(number, len(techniques)))])

    # --- a pass -------------------------------------------------------------------------------------------------------

    def _pass(self, arms: Sequence[Arm], least_gain: float) -> bool:
        """Races arms on top of the recipe so far. Returns whether a new recipe came out of it."""
        state = self._state
        anchor = state.recipe
        quick = self._affordable([arm for arm in arms if not arm.candidate.card.is_slow_to_start])
        slow = [arm for arm in arms if arm.candidate.card.is_slow_to_start]
        entries = [Entry(arm, state.trials(arm.recipe)) for arm in quick]
        late = [Entry(arm, state.trials(arm.recipe)) for arm in slow]
        if not entries and not (late and self._is_time_for_slow()):
            return False
        finalists = halve(entries, late, lambda going, num_rounds: self._race(anchor, going, num_rounds))
        raced = [entry for entry in (*entries, *late) if entry.gains or entry.failure or entry.inert]
        winners = self._judge(anchor, raced, finalists, least_gain)
        if not winners:
            return False
        self._take(anchor, winners)
        return True

    def _is_time_for_slow(self) -> bool:
        return self._state.budget.now_s() < self._state.budget.end_s(LATE_SHARE)

    def _race(self, anchor: Recipe, going: Sequence[Entry], num_rounds: int) -> None:
        """One rung."""
        state = self._state
        fixed = [] if anchor.choices else [state.control]
        if not self._is_time_for_slow():
            going = [entry for entry in going if entry.gains or not entry.arm.candidate.card.is_slow_to_start]
        others = [*fixed, *(entry.trials for entry in going)]
        race = state.runner.race(state.trials(anchor), others, num_rounds, state.budget.end_s(PROOF_SHARE))
        for entry in going:
            entry.failure, entry.inert = race.failures.get(id(entry.trials)), race.inert.get(id(entry.trials))
            gain = race.gain(entry.trials, state.trials(anchor))
            if gain is not None:
                entry.gains = [*entry.gains, gain]
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
                verdict = verdicts.with_numerics(verdict, verdicts.judge_numerics(state, entry.trials))
            if verdict.cause == "gains":
                winners.append(entry)
            self._remember(
                entry, verdict.cause in ("failed", "declined", "no_effect", "unsound", "never_pays", "opt_in")
            )
            state.decide(verdict)
            state.pool.leave(entry.trials)
        return winners

    def _remember(self, entry: Entry, is_out: bool) -> None:
        if entry.gain is not None:
            self.seen[entry.arm.choice] = entry.gain
        if is_out:
            self._out.add(entry.arm.choice)

    # --- combination --------------------------------------------------------------------------------------------------

    def _take(self, anchor: Recipe, winners: Sequence[Entry]) -> None:
        """Makes the best single winner the recipe, or the combination of all that do not conflict if it is faster."""
        state = self._state
        best = winners[0]
        assert best.gain is not None
        before = state.estimates.get(anchor, 0.0)
        state.adopt(best.recipe, before + best.gain)
        self.singles.append(best.recipe)
        whole, together = best.recipe, [best]
        for winner in winners[1:]:
            conflict = state.conflict(winner.arm.choice.technique, whole)
            if conflict is not None:
                state.revise(winner.arm.choice, decision="rejected", cause="conflict", other=str(conflict))
                continue
            whole, together = whole.plus(winner.arm.choice), [*together, winner]
        if len(together) < 2:
            return
        gains = self._race_combination(best.trials, state.trials(whole))
        if gains is not None and gains[0] > 0.0:
            numerics = verdicts.judge_numerics(state, state.trials(whole))
            if numerics.is_sound:
                state.adopt(whole, gains[1])
                return
        for winner in together[1:]:
            state.revise(winner.arm.choice, decision="rejected", cause="not_together", other=str(best.arm.choice))

    def _race_combination(self, single: RecipeTrials, whole: RecipeTrials) -> tuple[float, float] | None:
        """The log ratios of the combination against the best single winner and against the base."""
        state = self._state
        race = state.runner.race(state.base, [single, whole], ROUNDS, state.budget.end_s(PROOF_SHARE))
        against_single, against_base = race.gain(whole, single), race.gain(whole, state.base)
        single_gain = race.gain(single, state.base)
        if single_gain is not None:
            state.estimates[single.recipe] = single_gain
        state.pool.leave(single)
        state.pool.leave(whole)
        if against_single is None or against_base is None:
            return None
        return against_single, against_base

    def _report_not_raced(self) -> None:
        state = self._state
        raced: Collection[str] = {verdict.technique for verdict in state.verdicts if verdict.kind == "single"}
        for candidate in self._candidates:
            if candidate.technique not in raced:
                state.decide(verdicts.not_raced(candidate.first))
