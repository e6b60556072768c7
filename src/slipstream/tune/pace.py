"""How many steps a block has: long enough to time, short enough that a drifting machine meets all riders alike."""

from __future__ import annotations

import math

import msgspec

from slipstream.diagnose.statistics import median
from slipstream.records import Lap

BLOCK_S = 0.25  # noise lasts about a second where we looked: short blocks share it best
MIN_STEPS = 4  # batches of several workers arrive in bursts: fewer steps would time a burst
FEW_STEPS = 2  # where even so few are a long block: with the step that leads in, bursts fall now here, now there
ENOUGH_S = 0.5
LONG_STEP_S = 2.0  # from here a single step is a block
SHORT_EPOCH_S = 2.5
LEAD_IN_SHARE = 16  # one step in so many; caches are cold when the baton comes


def block(step_s: float, epoch_steps: int = 0, times: int = 1, training_steps: int = 0) -> tuple[int, int]:
    """How many steps are timed, and how many lead in. Where epochs are short a block and its lead-in are whole epochs:
    what an epoch's start costs comes round in every block and not in some of them. Never more than a third of the
    whole training, where its length is known: a script that ends inside its first block is never timed."""
    num_steps = times * (1 if step_s > LONG_STEP_S else _num_steps(max(step_s, 1e-6)))
    lead_in = max(1, num_steps // LEAD_IN_SHARE)
    if epoch_steps and _is_short(step_s, epoch_steps):
        num_steps = math.ceil((num_steps + lead_in) / epoch_steps) * epoch_steps - lead_in
    if training_steps and num_steps + lead_in > training_steps // 3:
        lead_in = 1
        num_steps = max(1, training_steps // 3 - lead_in)
    return num_steps, lead_in


def _num_steps(step_s: float) -> int:
    least = min(MIN_STEPS, max(FEW_STEPS, round(ENOUGH_S / step_s)))
    return max(least, round(BLOCK_S / step_s))


def evened(lap: Lap, step_s: float, epoch_steps: int) -> Lap:
    """With its share of an epoch's beginning, whether one fell into it or not. Blocks of whole epochs have it all."""
    if not lap.num_steps or not epoch_steps or _is_short(step_s, epoch_steps):
        return lap
    share_s = lap.epoch_start_s * lap.num_steps / epoch_steps
    return msgspec.structs.replace(lap, seconds=max(0.0, lap.seconds - lap.starts_s) + share_s)


def _is_short(step_s: float, epoch_steps: int) -> bool:
    return epoch_steps * step_s <= SHORT_EPOCH_S


def typical_step_s(laps: list[Lap]) -> float | None:
    """The median over blocks that count."""
    timed = [lap.step_s for lap in laps if lap.step_s > 0.0 and not lap.is_disturbed]
    return median(timed) if timed else None
