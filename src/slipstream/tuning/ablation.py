"""Races the recipe against itself without each of its techniques. A technique that was kept provisionally must show a
gain here too, against a new trial of the recipe. The trial in which it was chosen may have been fast by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.numbers import times
from slipstream.records import Choice, Recipe, Verdict
from slipstream.tuning.budget import TOTAL_SHARE
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RaceError, RecipeTrials

PROVING = 0.5  # of alpha; the other half is for the single races
Comparisons = Mapping[Choice, Comparison]


def leave_out(state: TuningState) -> None:
    """Removes techniques that add nothing to the recipe. It repeats while it removes a provisional technique, because
    the remaining ones may gain more without it. Techniques that stay without proof depend on the final race."""
    seen: dict[Choice, float] = {}  # estimated gain of each in its last race
    while len(state.recipe.choices) > 1:
        recipe, doubtful = state.recipe, state.provisional()
        comparisons = _comparisons(state, recipe, doubtful)
        newcomers = [choice for choice, comparison in comparisons.items() if not comparison.trials.timings]
        if not _race(state, comparisons):
            return
        raced = {choice: comparison for choice, comparison in comparisons.items() if comparison.sequence.num_rounds}
        seen |= {choice: comparison.promise() for choice, comparison in raced.items()}
        refuted = [choice for choice in doubtful if choice in comparisons and _is_refuted(state, choice, raced, seen)]
        superfluous = [choice for choice, comparison in comparisons.items() if comparison.outcome == "not_faster"]
        removed = _least(comparisons, going(refuted, doubtful, raced) or superfluous)
        for choice, comparison in comparisons.items():
            _report(state, choice, comparison, recipe, is_removed=choice == removed)
        if removed is not None:
            state.recipe = recipe.without(removed.technique)
            if removed in newcomers:
                state.adopt(comparisons[removed].trials)
        if removed not in doubtful:
            return


def _is_refuted(state: TuningState, choice: Choice, raced: Comparisons, seen: Mapping[Choice, float]) -> bool:
    """Whether a provisional technique must go. Its estimated gain must exceed the margin. If it never led clearly, it
    must also be proved here, as long as there is time."""
    if choice in seen and seen[choice] < 1.0 + state.order.margin:
        return True
    is_open = choice in raced or choice not in seen
    return is_open and choice not in state.leads and (choice not in raced or raced[choice].outcome != "faster")


def going(refuted: Sequence[Choice], doubtful: Sequence[Choice], raced: Comparisons) -> list[Choice]:
    """The techniques of which one is removed. If anything is refuted, these are the refuted techniques that were not
    raced or, if all were raced, all provisional techniques that are not proved: a clear lead may have been chance, and
    the gain may come from another technique."""
    if not refuted:
        return []
    unraced = [choice for choice in refuted if choice not in raced]
    return unraced or [choice for choice in doubtful if choice in raced and raced[choice].outcome != "faster"]


def _comparisons(state: TuningState, recipe: Recipe, doubtful: list[Choice]) -> Comparisons:
    """One comparison for each technique. The last technique of the recipe is skipped unless it is provisional: its own
    race has just shown its gain beside all others. Techniques that must be proved come first, the largest estimated
    gain before the others, because the time may end before the last one starts."""
    anchor = state.fresh_trials(recipe) if doubtful else state.trials(recipe)
    asked = [choice for choice in recipe.choices if choice in doubtful or choice != recipe.choices[-1]]
    asked.sort(key=lambda choice: (choice in state.leads or choice not in doubtful, -_single_gain(state, choice)))
    return {choice: _comparison(state, recipe, anchor, choice, len(doubtful)) for choice in asked}


def _race(state: TuningState, comparisons: Comparisons) -> bool:
    try:
        state.scheduler.race(
            list(comparisons.values()), lambda: state.budget.moment_s(TOTAL_SHARE), lambda comparison: None
        )
    except RaceError as error:
        state.note(f"Leaving techniques out was not tried: {error}.")
        return False
    return True


def _single_gain(state: TuningState, choice: Choice) -> float:
    """The estimated gain in its single race, over the recipe that it was raced on."""
    won = next((one for one in reversed(state.verdicts) if one.kind == "single" and one.choice == choice), None)
    if won is None or won.speed is None:
        return 0.0
    ground = state.speed_of(won.recipe.without(choice.technique))
    return won.speed.ratio / (ground.ratio if ground is not None else 1.0)


def _comparison(
    state: TuningState, recipe: Recipe, anchor: RecipeTrials, choice: Choice, num_doubtful: int
) -> Comparison:
    trials = state.trials(recipe.without(choice.technique))
    alpha = PROVING * state.order.alpha / max(1, num_doubtful)
    return state.comparison(trials, anchor, alpha, is_mirrored=True)


def _least(comparisons: Comparisons, superfluous: list[Choice]) -> Choice | None:
    """The technique with the smallest gain. Only one is removed at a time, because of two techniques that can replace
    each other both look superfluous."""
    return min(superfluous, key=lambda choice: comparisons[choice].promise(), default=None)


def _report(state: TuningState, choice: Choice, comparison: Comparison, recipe: Recipe, is_removed: bool) -> None:
    speed = comparison.speed()
    if not is_removed:
        state.pool.leave(comparison.trials)
    if speed is None:
        if is_removed:
            state.give_up(choice, "it was ahead, but there was no time to prove what it adds to the others")
        return
    reason = f"worth {times(speed)} inside the recipe"
    if is_removed:
        reason = f"leaving it out of {recipe} costs nothing: it is worth {times(speed)} there"
        state.revise(choice, "rejected", reason)
    elif comparison.outcome == "faster" and choice in state.provisional():
        state.revise(choice, "kept", reason)
    verdict = Verdict(
        choice.technique,
        choice.setting,
        "rejected" if is_removed else "kept",
        reason,
        speed=speed,
        recipe=recipe.without(choice.technique),
        kind="left_out",
    )
    state.decide(verdict)
