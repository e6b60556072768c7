"""How many steps a block has: long enough to time, short enough that a drifting machine meets all riders alike."""

from __future__ import annotations

from slipstream.diagnose.statistics import median
from slipstream.records import Lap

BLOCK_S = 0.4
MIN_STEPS = 4  # batches of several workers arrive in bursts: fewer steps would time a burst
LONG_STEP_S = 2.0  # from here a single step is a block
LEAD_IN_SHARE = 16  # one step in so many; caches are cold when the baton comes


def block_steps(step_s: float) -> int:
    if step_s > LONG_STEP_S:
        return 1
    return max(MIN_STEPS, round(BLOCK_S / max(step_s, 1e-6)))


def lead_in_steps(num_steps: int) -> int:
    return max(1, num_steps // LEAD_IN_SHARE)


def typical_step_s(laps: list[Lap]) -> float | None:
    """The median over blocks that count."""
    timed = [lap.step_s for lap in laps if lap.step_s > 0.0 and not lap.is_disturbed]
    return median(timed) if timed else None
