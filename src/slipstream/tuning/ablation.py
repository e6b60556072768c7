"""Each technique of a recipe is left out once. What was built on before it was decided must seem to be worth something
here too, against a fresh rider of the recipe: the one that it was chosen by may have been lucky."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.records import Choice, Recipe, Verdict
from slipstream.report.text.numbers import times
from slipstream.tuning.budget import TOTAL_SHARE
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RaceError, RecipeTrials

PROVING = 0.5  # of alpha: the other half was for the races alone
Contests = Mapping[Choice, Comparison]


def leave_out(state: TuningState) -> None:
    """Again and again while something goes that was only built on: beside fewer others the rest may be worth more.
    What stays without proof stands or falls with the whole recipe."""
    seen: dict[Choice, float] = {}  # what each seemed to be worth when it was raced last
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
        gone = _least(comparisons, going(refuted, doubtful, raced) or superfluous)
        for choice, comparison in comparisons.items():
            _report(state, choice, comparison, recipe, is_gone=choice == gone)
        if gone is not None:
            state.recipe = recipe.without(gone.technique)
            if gone in newcomers:
                state.adopt(comparisons[gone].trials)
        if gone not in doubtful:
            return


def _is_refuted(state: TuningState, choice: Choice, raced: Contests, seen: Mapping[Choice, float]) -> bool:
    """What was never proved must at least seem to be worth something here; what never led clearly must be proved, as
    long as there is time."""
    if choice in seen and seen[choice] < 1.0 + state.order.margin:
        return True
    is_open = choice in raced or choice not in seen
    return is_open and choice not in state.leads and (choice not in raced or raced[choice].outcome != "faster")


def going(refuted: Sequence[Choice], doubtful: Sequence[Choice], raced: Contests) -> list[Choice]:
    """One of these: what there was no time for; else, if anything is refuted, any that is not proved, for a lead may
    have been luck, and what it took the time from may be the gain."""
    if not refuted:
        return []
    unraced = [choice for choice in refuted if choice not in raced]
    return unraced or [choice for choice in doubtful if choice in raced and raced[choice].outcome != "faster"]


def _comparisons(state: TuningState, recipe: Recipe, doubtful: list[Choice]) -> Contests:
    """The last that won its own race has just been shown to be needed beside all others. What must be proved comes
    first, the greatest hope before the others: the time may be over before the last has started."""
    anchor = state.fresh_seat(recipe) if doubtful else state.trials(recipe)
    asked = [choice for choice in recipe.choices if choice in doubtful or choice != recipe.choices[-1]]
    asked.sort(key=lambda choice: (choice in state.leads or choice not in doubtful, -_hope(state, choice)))
    return {choice: _comparison(state, recipe, anchor, choice, len(doubtful)) for choice in asked}


def _race(state: TuningState, comparisons: Contests) -> bool:
    try:
        state.scheduler.race(
            list(comparisons.values()), lambda: state.budget.moment_s(TOTAL_SHARE), lambda comparison: None
        )
    except RaceError as error:
        state.note(f"Leaving techniques out was not tried: {error}.")
        return False
    return True


def _hope(state: TuningState, choice: Choice) -> float:
    """What it seemed to gain on top of what it was raced on."""
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


def _least(comparisons: Contests, superfluous: list[Choice]) -> Choice | None:
    """One at a time: two that stand in for each other both look superfluous."""
    return min(superfluous, key=lambda choice: comparisons[choice].promise(), default=None)


def _report(state: TuningState, choice: Choice, comparison: Comparison, recipe: Recipe, is_gone: bool) -> None:
    speed = comparison.speed()
    if not is_gone:
        state.pool.leave(comparison.trials)
    if speed is None:
        if is_gone:
            state.give_up(choice, "it was ahead, and there was no time to prove what it adds to the others")
        return
    reason = f"worth {times(speed)} inside the recipe"
    if is_gone:
        reason = f"leaving it out of {recipe} costs nothing: it is worth {times(speed)} there"
        state.revise(choice, "rejected", reason)
    elif comparison.outcome == "faster" and choice in state.provisional():
        state.revise(choice, "kept", reason)
    verdict = Verdict(
        choice.technique,
        choice.setting,
        "rejected" if is_gone else "kept",
        reason,
        speed=speed,
        recipe=recipe.without(choice.technique),
        kind="left_out",
    )
    state.decide(verdict)
