"""Removes the techniques of a recipe that add nothing. The whole recipe races against the recipe without one technique,
for each technique."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.records import Choice, Recipe, Verdict
from slipstream.tuning import verdicts
from slipstream.tuning.rounds import Race
from slipstream.tuning.selection import ROUNDS
from slipstream.tuning.state import TuningState


def ablate(state: TuningState) -> None:
    """Removes all techniques that add nothing, if a race shows that the rest of the recipe is as fast as the whole one.
    Without this evidence only the technique that adds least is removed. If two techniques do the same job, each of them
    seems superfluous as long as the other one is in the recipe. Without time for the first race nothing is removed."""
    recipe = state.recipe
    if len(recipe.choices) < 2 or not _is_time_for(state, len(recipe.choices)):
        return
    least = math.log1p(state.order.margin)
    worths = _worths(state, recipe, least)
    superfluous = sorted((choice for choice in worths if worths[choice] < least), key=lambda one: worths[one])
    removed = superfluous
    if len(superfluous) > 1 and not _is_as_fast(state, recipe, superfluous, least):
        removed = superfluous[:1]
    for choice, worth in worths.items():
        _report(state, recipe, choice, worth, is_removed=choice in removed)
    for choice in removed:
        state.revise(choice, decision="rejected", cause="superfluous")
    if removed:
        state.adopt(_without(recipe, removed), state.estimates.get(recipe, 0.0))


def _without(recipe: Recipe, choices: Sequence[Choice]) -> Recipe:
    return Recipe(tuple(choice for choice in recipe.choices if choice not in choices))


def _is_time_for(state: TuningState, num_others: int) -> bool:
    return state.budget.now_s() + state.costs.race_s(num_others + 1, ROUNDS) < state.budget.selection_end_s()


def _worths(state: TuningState, recipe: Recipe, least: float) -> dict[Choice, float]:
    """Returns for each technique how much faster the recipe is with this technique than without it, as a log ratio."""
    whole = state.trials(recipe)
    without = {choice: state.trials(recipe.without(choice.technique)) for choice in recipe.choices}

    def is_enough(race: Race) -> bool:
        return all(race.is_clear(trials, whole, -least) for trials in without.values())

    race = state.runner.race(whole, list(without.values()), ROUNDS, state.budget.selection_end_s(), is_enough)
    for trials in (whole, *without.values()):
        state.pool.leave(trials)
    gains = {choice: race.gain(trials, whole) for choice, trials in without.items()}
    return {choice: -gain for choice, gain in gains.items() if gain is not None}


def _is_as_fast(state: TuningState, recipe: Recipe, superfluous: Sequence[Choice], least: float) -> bool:
    """Whether the recipe is as fast without all superfluous techniques. False if no technique would be left, or if
    there is no time."""
    rest = _without(recipe, superfluous)
    if not rest.choices or not _is_time_for(state, 1):
        return False
    whole, trials = state.trials(recipe), state.trials(rest)
    deadline_s = state.budget.selection_end_s()
    race = state.runner.race(whole, [trials], ROUNDS, deadline_s, lambda race: race.is_clear(trials, whole, -least))
    gain = race.gain(trials, whole)
    for one in (whole, trials):
        state.pool.leave(one)
    return gain is not None and gain > -least


def _report(state: TuningState, recipe: Recipe, choice: Choice, worth: float, is_removed: bool) -> None:
    state.decide(
        Verdict(
            choice.technique,
            choice.setting,
            "rejected" if is_removed else "kept",
            speed=verdicts.estimate(worth),
            recipe=recipe.without(choice.technique),
            kind="left_out",
            own_ratio=math.exp(worth),
            cause="superfluous" if is_removed else "gains",
        )
    )
