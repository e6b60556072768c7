"""The best recipe that `slipstream patch` can write into the source, where the best one of all cannot be written."""

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
    """The recipe without the techniques that cannot be written. Each is replaced by the technique that gained most of
    those that can be written and conflict with it. Empty if all can be written. `seen` are the log ratios of all raced
    choices."""
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
    """Races the recipe against the base, as a race of the selection does. Returns whether it gains and is sound."""
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
