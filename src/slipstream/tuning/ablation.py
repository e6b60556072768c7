"""Removes the techniques of a recipe that add nothing: races the recipe against itself without each of them."""

from __future__ import annotations

import math

from slipstream.records import Choice, Recipe, Verdict
from slipstream.tuning import verdicts
from slipstream.tuning.budget import PROOF_SHARE
from slipstream.tuning.selection import ROUNDS
from slipstream.tuning.state import TuningState


def ablate(state: TuningState) -> None:
    """Removes one technique at a time, the one that adds least, because two that can replace each other both look
    superfluous beside each other. A further race is needed only if another one looked superfluous too."""
    while len(state.recipe.choices) > 1:
        recipe = state.recipe
        if state.budget.now_s() + _race_s(state, recipe) > state.budget.end_s(PROOF_SHARE):
            return
        worths = _worths(state, recipe)
        least = math.log1p(state.order.margin)
        superfluous = sorted((choice for choice in worths if worths[choice] < least), key=lambda one: worths[one])
        for choice, worth in worths.items():
            _report(state, recipe, choice, worth, is_removed=superfluous[:1] == [choice])
        if not superfluous:
            return
        removed = superfluous[0]
        state.revise(removed, decision="rejected", cause="superfluous")
        state.adopt(recipe.without(removed.technique), state.estimates.get(recipe, 0.0) - worths[removed])
        if len(superfluous) < 2:
            return


def _race_s(state: TuningState, recipe: Recipe) -> float:
    return state.costs.race_s(len(recipe.choices) + 1, ROUNDS)


def _worths(state: TuningState, recipe: Recipe) -> dict[Choice, float]:
    """For each technique the log ratio of the recipe against itself without it."""
    whole = state.trials(recipe)
    without = {choice: state.trials(recipe.without(choice.technique)) for choice in recipe.choices}
    race = state.runner.race(whole, list(without.values()), ROUNDS, state.budget.end_s(PROOF_SHARE))
    for trials in (whole, *without.values()):
        state.pool.leave(trials)
    gains = {choice: race.gain(trials, whole) for choice, trials in without.items()}
    return {choice: -gain for choice, gain in gains.items() if gain is not None}


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
