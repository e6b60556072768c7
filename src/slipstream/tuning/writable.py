"""Derives a recipe that `slipstream patch` can write into the source, if `patch` cannot write the best recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slipstream.recipe.source_edits import is_writable
from slipstream.records import Choice, Recipe
from slipstream.techniques._core.observation import Observation
from slipstream.tuning import verdicts
from slipstream.tuning.selection import ROUNDS
from slipstream.tuning.state import TuningState


def find_writable(state: TuningState, seen: Mapping[Choice, float]) -> Recipe:
    """Returns the recipe so far without the techniques that cannot be written, or an empty recipe if all can be
    written. A technique that cannot be written is replaced by a technique that can be written, conflicts with it, and
    gained most. `seen` contains the log ratios of all raced choices."""
    observation = Observation(state.session)

    def can_write(choice: Choice) -> bool:
        return is_writable(observation, choice, state.techniques[choice.technique])

    lost = [choice for choice in state.recipe.choices if not can_write(choice)]
    if not lost:
        return Recipe()
    writable = Recipe(tuple(choice for choice in state.recipe.choices if choice not in lost))
    gaining = [choice for choice in seen if seen[choice] > math.log1p(state.order.margin) and can_write(choice)]
    for choice in sorted(gaining, key=lambda one: -seen[one]):
        replaces = any(state.conflict(choice.technique, Recipe((one,))) is not None for one in lost)
        if replaces and state.conflict(choice.technique, writable) is None:
            writable = writable.plus(choice) if writable.setting_of(choice.technique) is None else writable
    return writable


def measure(state: TuningState, recipe: Recipe) -> bool:
    """Races the recipe against the base, as the selection does. Returns whether the recipe gains and its numerics are
    sound."""
    deadline_s = state.budget.selection_end_s()
    if state.budget.now_s() + state.costs.race_s(2, ROUNDS) > deadline_s:
        return False
    trials = state.trials(recipe)
    gain = state.runner.race(state.base, [trials], ROUNDS, deadline_s).gain(trials, state.base)
    if (
        gain is None
        or gain <= math.log1p(state.order.margin)
        or not verdicts.judge_numerics(state, trials, deadline_s).is_sound
    ):
        return False
    state.estimates[recipe] = gain
    return True
