"""How many steps a block has: long enough to time, short enough that a drifting machine meets all riders alike."""

from __future__ import annotations

import math

import msgspec

from slipstream.diagnose.statistics import median
from slipstream.records import BlockTiming

BLOCK_S = 0.1  # noise lasts about a second where we looked: short blocks share it best, and more of them fit
FEW_STEPS = 2  # at the least: a step may take twice as long as the next, by turns
MOST_AT_ONCE = 4  # batches of several workers arrive in bursts: fewer steps would time a burst
ENOUGH_S = 0.5  # where even so few steps are a long block, bursts fall now here, now there
LONG_STEP_S = 2.0  # from here a single step is a block
SHORT_EPOCH_S = 2.5
LEAD_IN_SHARE = 16  # one step in so many; caches are cold when the baton comes


class BlockPlan(msgspec.Struct, frozen=True):
    """What is known of a script's steps before it is raced."""

    step_s: float
    epoch_steps: int = 0  # 0: not known, or not a whole number
    training_steps: int = 0  # 0: not known
    at_once: int = MOST_AT_ONCE  # batches that may arrive in one burst


def block(block_plan: BlockPlan, times: int = 1) -> tuple[int, int]:
    """How many steps are timed, and how many lead in. Where epochs are short a block and its lead-in are whole epochs:
    what an epoch's start costs comes round in every block and not in some of them. Never more than a third of the
    whole training, where its length is known: a script that ends inside its first block is never timed."""
    num_steps = times * (1 if block_plan.step_s > LONG_STEP_S else _num_steps(block_plan))
    lead_in = max(1, num_steps // LEAD_IN_SHARE)
    if _is_short(block_plan):
        num_steps = math.ceil((num_steps + lead_in) / block_plan.epoch_steps) * block_plan.epoch_steps - lead_in
    if block_plan.training_steps and num_steps + lead_in > block_plan.training_steps // 3:
        lead_in = 1
        num_steps = max(1, block_plan.training_steps // 3 - lead_in)
    return num_steps, lead_in


def _num_steps(block_plan: BlockPlan) -> int:
    step_s = max(block_plan.step_s, 1e-6)
    burst = min(block_plan.at_once, MOST_AT_ONCE, round(ENOUGH_S / step_s))
    return max(FEW_STEPS, burst, round(BLOCK_S / step_s))


def evened(timing: BlockTiming, block_plan: BlockPlan) -> BlockTiming:
    """With its share of an epoch's beginning, whether one fell into it or not. Blocks of whole epochs have it all."""
    if not timing.num_steps or not block_plan.epoch_steps or _is_short(block_plan):
        return timing
    share_s = timing.epoch_start_s * timing.num_steps / block_plan.epoch_steps
    return msgspec.structs.replace(timing, seconds=max(0.0, timing.seconds - timing.starts_s) + share_s)


def _is_short(block_plan: BlockPlan) -> bool:
    return block_plan.epoch_steps > 0 and block_plan.epoch_steps * block_plan.step_s <= SHORT_EPOCH_S


def typical_step_s(timings: list[BlockTiming]) -> float | None:
    """The median over blocks that count."""
    timed = [timing.step_s for timing in timings if timing.step_s > 0.0 and not timing.is_disturbed]
    return median(timed) if timed else None
