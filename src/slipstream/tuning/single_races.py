"""Races each technique by itself, against the base or on top of the recipe so far. The settings of the winners are then
improved by hill climbing, from neighbour to neighbour."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.numbers import times
from slipstream.records import Choice, Recipe, Setting, Speed, Verdict
from slipstream.tuning.budget import share_kept_back
from slipstream.tuning.candidates import Candidate
from slipstream.tuning.comparison import LEADING, LEADING_ROUNDS, Comparison
from slipstream.tuning.control import MIN_ROUNDS
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RaceError
from slipstream.tuning.verdicts import rule

CONTROL_ROUNDS = 24
FEW_CONTROL_ROUNDS = 12  # if it takes the only place
FEWEST_CONTROL_ROUNDS = MIN_ROUNDS  # if every round costs two starts
GROUND_SHARE = 0.3  # of the budget, at most
GROUND_ROUNDS = LEADING_ROUNDS
CLIMBING_ROUNDS = 8  # for a setting that does not seem better: the technique is kept either way
MOST_CLIMBING_ROUNDS = 16  # settings that are undecided then differ by little, and other techniques may gain more
OVER = 0.0  # a time in the past


class Winner(msgspec.Struct, frozen=True):
    candidate: Candidate
    verdict: Verdict  # kept
    added: Speed | None = None  # the gain over the ground, if that is not the unchanged script

    @property
    def choice(self) -> Choice:
        return self.verdict.choice

    @property
    def is_climbed(self) -> bool:
        return len(self.candidate.settings) > 1 and _is_numeric(self.candidate.settings)

    @property
    def own_ratio(self) -> float:
        """The gain over the ground that it was raced on."""
        return self.added.ratio if self.added is not None else self.speed.ratio

    @property
    def speed(self) -> Speed:
        assert self.verdict.speed is not None
        return self.verdict.speed


def num_comparisons(candidates: Sequence[Candidate]) -> int:
    """The number of comparisons that share alpha. It includes those of an earlier, interrupted tuning, and the second
    setting of each technique, even if it is not raced."""
    return max(1, sum(min(2, len(one.settings)) for one in candidates))


def race_alone(
    state: TuningState,
    candidates: Sequence[Candidate],
    alpha: float,
    begun: Sequence[Comparison] = (),
    num_controls: int = 1,
) -> list[Winner]:
    """Races each candidate on top of the ground, which may be the unchanged script. Returns the winners, the largest
    gain first. A large gain or a clear lead ends the race, so that the others are raced on top of it. The comparisons
    in `begun` continue."""
    recalled = _recall(state, candidates)
    winners = [Winner(one, verdict) for one, verdict in recalled if verdict.decision == "kept"]
    _note_best(state, winners)
    known = {one.technique for one, _ in recalled}
    by_name = {one.technique: one for one in candidates}
    anchor = state.anchor
    leaders: list[Comparison] = []  # the candidate that is kept provisionally

    def comparison_of(choice: Choice) -> Comparison:
        comparison = state.race_of(choice, alpha)
        comparison.is_doubtful = by_name[choice.technique].is_doubtful
        return comparison

    def settle(comparison: Comparison) -> Comparison | None:
        if comparison.is_control:
            state.pool.leave(comparison.trials)
            return None
        choice = comparison.trials.recipe.choices[-1]
        candidate = by_name[choice.technique]
        if comparison in leaders and comparison.outcome == "undecided":
            comparison.build_on()
        _settle(state, comparison, candidate, winners)
        _note_best(state, winners)
        following = _second(candidate, choice, comparison)
        return comparison_of(following) if following is not None else None

    def best_ratio() -> float:
        return max((winner.own_ratio for winner in winners), default=1.0)

    def front_runner() -> Comparison | None:
        better = [one for one in comparisons if one.outcome is None and one.promise() > best_ratio()]
        return max(better, key=Comparison.promise, default=None)

    def is_only_hope(comparison: Comparison) -> bool:
        return not winners and comparison.is_hopeful() and by_name[comparison.technique].is_keepable

    def end_s() -> float:
        num_climbing = sum(winner.is_climbed for winner in winners)
        return state.budget.moment_s(share_kept_back(len(winners), num_climbing, state.num_provisional))

    def elect_leader(first: Comparison) -> None:
        if first.is_leading() and by_name[first.technique].is_keepable:
            leaders[:] = [first]
        elif not leaders and is_only_hope(first) and state.budget.now_s() >= min(state.hope_s, end_s()):
            leaders[:] = [first]  # there is time to prove the best candidate, but not to decide all

    def update_deadline_s() -> float:
        """Elects a leader if one is clear or the time is short, and returns when the race is to end."""
        first = front_runner()
        if first is not None:
            elect_leader(first)
        if leaders or (best_ratio() >= LEADING and first is None):
            return OVER
        return min(state.hope_s, end_s()) if first is not None and is_only_hope(first) else end_s()

    known |= {comparison.technique for comparison in begun}
    comparisons = [comparison_of(one.first) for one in candidates if one.technique not in known]
    comparisons += [
        comparison_of(Choice(one.technique, one.settings[1])) for one in candidates if _is_owed(recalled, one)
    ]
    comparisons += [one for one in begun if not one.is_control]
    if comparisons:
        state.scheduler.warm(anchor)
        controls = [one for one in begun if one.is_control]
        controls = controls or [
            state.control_comparison(anchor, _num_control_rounds(state)) for _ in range(num_controls)
        ]
        state.scheduler.race([comparisons[0], *controls, *comparisons[1:]], update_deadline_s, settle)
    return sorted(winners, key=lambda winner: -winner.speed.ratio)


def race_ground(
    state: TuningState, candidates: Sequence[Candidate], alpha: float
) -> tuple[list[Winner], list[Comparison]]:
    """Races the ground candidates for a few rounds. One that has not lost by then is kept provisionally. Undecided ones
    continue in the next race."""
    winners: list[Winner] = []
    begun: list[Comparison] = []
    recalled = _recall(state, candidates)
    if recalled:
        return [Winner(one, verdict) for one, verdict in recalled if verdict.decision == "kept"], []
    by_name = {one.technique: one for one in candidates}
    comparisons = [
        state.comparison(state.trials(Recipe((one.first,))), state.base, alpha, base=state.base) for one in candidates
    ]

    def settle(comparison: Comparison) -> None:
        if comparison.is_control:
            return
        is_enough = comparison.sequence.num_rounds >= GROUND_ROUNDS
        if comparison.outcome == "undecided" and is_enough and comparison.promise() >= 1.0:
            comparison.build_on()
        if comparison.outcome == "undecided":
            comparison.reopen()
            begun.append(comparison)
        else:
            _settle(state, comparison, by_name[comparison.technique], winners)

    def deadline_s() -> float:
        is_open = any(one.sequence.num_rounds < GROUND_ROUNDS for one in comparisons)
        return state.budget.moment_s(1.0 - GROUND_SHARE) if is_open else OVER

    if comparisons:
        state.scheduler.warm(state.base)
        if state.scheduler.num_affordable(1, state.budget.moment_s(1.0 - GROUND_SHARE)) <= len(comparisons):
            return [], comparisons  # there is no time for these races and the control
        control = state.control_comparison(state.base, _num_control_rounds(state))
        state.scheduler.race([*comparisons[:1], control, *comparisons[1:]], deadline_s, settle)
        if control.outcome == "undecided" and not winners:
            control.reopen()
            begun.append(control)  # it continues beside the same base without a new start
        else:
            state.pool.leave(control.trials)
    return sorted(winners, key=lambda winner: -winner.speed.ratio), begun


def _settle(state: TuningState, comparison: Comparison, candidate: Candidate, winners: list[Winner]) -> None:
    choice = comparison.trials.recipe.choices[-1]
    verdict = rule(state, comparison, choice, candidate.is_keepable, state.speed_of(state.ground))
    if comparison.is_built_on and verdict.decision == "kept":
        reason = f"ahead in {comparison.sequence.num_rounds} rounds; still to be proved in the recipe"
        verdict = msgspec.structs.replace(verdict, is_provisional=True, reason=reason)
        if comparison.was_leading:
            state.leads.add(choice)
    state.decide(verdict)
    if verdict.decision == "kept":
        winners.append(Winner(candidate, verdict, comparison.speed()))
        return
    state.pool.leave(comparison.trials)


def _note_best(state: TuningState, winners: Sequence[Winner]) -> None:
    """Stores the best recipe so far, in case the tuning is interrupted."""
    if winners:
        state.recipe = state.on_ground(max(winners, key=lambda winner: winner.speed.ratio).choice)


def _second(candidate: Candidate, choice: Choice, comparison: Comparison) -> Choice | None:
    """The second setting of a technique whose first setting lost its race."""
    has_lost = comparison.outcome in ("not_faster", "slower")
    if not has_lost or choice != candidate.first or len(candidate.settings) < 2:
        return None
    return Choice(candidate.technique, candidate.settings[1])


def _is_owed(recalled: Sequence[tuple[Candidate, Verdict]], candidate: Candidate) -> bool:
    """Whether the second setting is still to be raced: the tuning was interrupted after the first one lost."""
    seen = [verdict for one, verdict in recalled if one.technique == candidate.technique]
    if len(seen) != 1 or seen[0].choice != candidate.first or len(candidate.settings) < 2:
        return False
    return seen[0].decision == "rejected" and seen[0].speed is not None and seen[0].speed.low <= 1.0


def _num_control_rounds(state: TuningState) -> int:
    if state.pool.is_relaunching():
        return FEWEST_CONTROL_ROUNDS
    return FEW_CONTROL_ROUNDS if state.pool.num_challengers() < 2 else CONTROL_ROUNDS


def _recall(state: TuningState, candidates: Sequence[Candidate]) -> list[tuple[Candidate, Verdict]]:
    """The verdicts of an interrupted tuning on this ground. Undecided candidates race again."""
    by_name = {candidate.technique: candidate for candidate in candidates}
    recalled = []
    for verdict in state.journal.verdicts:
        is_here = verdict.kind == "single" and verdict.recipe == state.on_ground(verdict.choice)
        if is_here and verdict.technique in by_name and verdict.decision != "unsure":
            state.decide(verdict, is_remembered=False)
            recalled.append((by_name[verdict.technique], verdict))
    return recalled


def climb(state: TuningState, winners: Sequence[Winner]) -> list[Winner]:
    """Finds the best setting of each winner with numeric settings, because the gains of others may depend on it.
    Settings that are names come last (`climb_names`)."""
    kept_back = share_kept_back(len(winners), 0, state.num_provisional)
    return [
        _climb_one(state, one, state.on_ground(one.choice), kept_back) if one.is_climbed else one for one in winners
    ]


def climb_names(state: TuningState, winners: Sequence[Winner]) -> None:
    """Tries named settings on the complete recipe, after all techniques: a compiler mode takes long to start."""
    for winner in winners:
        if not winner.is_climbed and winner.choice in state.recipe.choices:
            _climb_one(state, winner, state.recipe, share_kept_back(1, 0, state.num_provisional))


def _climb_one(state: TuningState, winner: Winner, recipe: Recipe, kept_back: float) -> Winner:
    best, settings = winner, winner.candidate.settings
    tried = {verdict.setting for verdict in state.verdicts if verdict.technique == winner.choice.technique}
    while True:
        setting = neighbour(settings, best.choice.setting, tried)
        if setting is None or state.budget.now_s() >= state.budget.moment_s(kept_back):
            return best
        tried.add(setting)
        verdict = _challenge(state, recipe, best.speed, Choice(winner.choice.technique, setting), kept_back)
        if verdict.decision == "kept":
            state.revise(best.choice, "rejected", f"{verdict.choice} is faster still, {_against_base(verdict)}")
            if state.recipe == recipe:
                state.recipe = verdict.recipe
            best, recipe = Winner(winner.candidate, verdict), verdict.recipe


def _challenge(state: TuningState, recipe: Recipe, through: Speed, choice: Choice, kept_back: float) -> Verdict:
    """Races another setting of one of the recipe's techniques."""
    trials, anchor = state.trials(recipe.plus(choice)), state.trials(recipe)
    comparison = state.comparison(trials, anchor, base=state.base)
    last_s = state.budget.moment_s(kept_back)

    def deadline_s() -> float:
        most = MOST_CLIMBING_ROUNDS if comparison.is_promising() else CLIMBING_ROUNDS
        return last_s if comparison.sequence.num_rounds < most else OVER

    if state.budget.now_s() + state.scheduler.need_s(recompiled=choice.technique) >= last_s:
        comparison.end("undecided")  # before any trial is started for it
    else:
        try:
            state.scheduler.race([comparison], deadline_s, lambda comparison: None, state.companions())
        except RaceError as error:
            comparison.abandon(str(error))
    verdict = state.decide(rule(state, comparison, choice, through=through))
    if verdict.decision != "kept":
        state.pool.leave(trials)
    return verdict


def _against_base(verdict: Verdict) -> str:
    return times(verdict.speed) if verdict.speed is not None else "by its own race"


def neighbour(settings: Sequence[Setting], best: Setting, tried: set[Setting]) -> Setting | None:
    """The next untried setting. For numbers it is the next larger one, else the next smaller one. Names have no
    neighbours: for them it is the next one in the list."""
    ordered = sorted(settings, key=_number) if _is_numeric(settings) else list(settings)
    if best not in ordered:
        return None
    at = ordered.index(best)
    beside = [*ordered[at + 1 : at + 2], *ordered[at - 1 : at]] if _is_numeric(settings) else ordered[at + 1 :]
    return next((setting for setting in beside if setting not in tried), None)


def _is_numeric(settings: Sequence[Setting]) -> bool:
    return all(isinstance(setting, int) and not isinstance(setting, bool) for setting in settings)


def _number(setting: Setting) -> int:
    assert isinstance(setting, int)
    return setting
