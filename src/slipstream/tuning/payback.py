"""The one-off cost of a technique (compilation, worker start), and the number of steps after which it pays off."""

from __future__ import annotations

import math

CHANCE = 0.1  # share of a start-up by which two starts of the same script may differ


def one_off_s(startup_s: float, base_startup_s: float) -> float:
    """Returns by how much `startup_s` exceeds `base_startup_s`, or 0 if the excess is usual for two starts."""
    beyond_s = startup_s - base_startup_s
    return beyond_s if beyond_s > CHANCE * base_startup_s else 0.0


def payback_steps(one_off: float, base_step_s: float, step_s: float) -> int | None:
    """Returns the number of steps after which the one-off cost is recovered. Returns None if there is no cost, or if
    the cost is never recovered."""
    if one_off <= 0.0 or step_s >= base_step_s:
        return None
    return math.ceil(one_off / (base_step_s - step_s) - 1e-6)


def pays_within(steps: int | None, num_training_steps: float | None) -> bool:
    """Whether the one-off cost is recovered within the training. A training of unknown length counts as long enough.
    `steps` is the result of `payback_steps`, and None counts as no cost."""
    return steps is None or num_training_steps is None or steps <= num_training_steps
