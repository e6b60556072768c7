"""Chooses the number of steps in a block. A block is long enough to time, and short enough that changes in the
machine's speed affect all trials alike."""

from __future__ import annotations

import math

import msgspec

from slipstream.diagnose.statistics import median
from slipstream.records import BlockTiming

# Noise of the machine lasts about a second. If blocks are shorter, the noise affects all blocks of a round alike. In
# much shorter blocks the load of other programs could not be measured, because the system counts it in ticks of 10 ms.
BLOCK_S = 0.25
FEW_STEPS = 2  # the fewest steps of a block, because in some scripts every other step takes twice as long
# Batches of several workers arrive in bursts. A block with fewer steps than a burst would show only a part of the
# burst. A block therefore has at least this many steps if the script may have so many workers, unless these steps take
# longer than ENOUGH_S.
MOST_AT_ONCE = 4
ENOUGH_S = 0.5  # bursts make no block longer than this, because they average out in longer blocks
LONG_STEP_S = 1.0  # a longer step is a block of its own; it needs no lead-in, because it refills the caches itself
SHORT_EPOCH_S = 1.0  # four usual blocks; starts of longer epochs are timed separately and spread over the blocks
LEAD_IN_SHARE = 16  # timed steps for each lead-in step, because caches are cold when a trial gets the baton


class BlockPlan(msgspec.Struct, frozen=True):
    """What is known about a script's steps before the race."""

    step_s: float
    epoch_steps: int = 0  # 0: unknown, or not a whole number
    training_steps: int = 0  # 0: unknown
    at_once: int = MOST_AT_ONCE  # batches that may arrive in one burst


def block(block_plan: BlockPlan, times: int = 1) -> tuple[int, int]:
    """Returns the number of timed steps and the number of lead-in steps. If epochs are short, a block with its lead-in
    is a whole number of epochs, so every block includes the same number of epoch starts. If the length of the training
    is known, a block takes at most a third of the training, because a script that ends in its first block is never
    timed. `times` makes a block this many times as long."""
    num_steps = times * (1 if block_plan.step_s > LONG_STEP_S else _num_steps(block_plan))
    lead_in = max(1, num_steps // LEAD_IN_SHARE) if block_plan.step_s <= LONG_STEP_S else 0
    if _is_short(block_plan):
        num_steps = math.ceil((num_steps + lead_in) / block_plan.epoch_steps) * block_plan.epoch_steps - lead_in
    if block_plan.training_steps and num_steps + lead_in > block_plan.training_steps // 3:
        lead_in = min(1, lead_in)
        num_steps = max(1, block_plan.training_steps // 3 - lead_in)
    return num_steps, lead_in


def _num_steps(block_plan: BlockPlan) -> int:
    step_s = max(block_plan.step_s, 1e-6)
    burst = min(block_plan.at_once, MOST_AT_ONCE, round(ENOUGH_S / step_s))
    return max(FEW_STEPS, burst, round(BLOCK_S / step_s))


def evened(timing: BlockTiming, block_plan: BlockPlan) -> BlockTiming:
    """Returns the timing with the cost of an epoch start spread evenly over the steps of an epoch. The timing is not
    changed if epochs are short, because blocks are then whole epochs, or if the length of an epoch is unknown."""
    if not timing.num_steps or not block_plan.epoch_steps or _is_short(block_plan):
        return timing
    share_s = timing.epoch_start_s * timing.num_steps / block_plan.epoch_steps
    return msgspec.structs.replace(timing, seconds=max(0.0, timing.seconds - timing.starts_s) + share_s)


def _is_short(block_plan: BlockPlan) -> bool:
    return block_plan.epoch_steps > 0 and block_plan.epoch_steps * block_plan.step_s <= SHORT_EPOCH_S


def typical_step_s(timings: list[BlockTiming]) -> float | None:
    """The median step time over undisturbed blocks."""
    timed = [timing.step_s for timing in timings if timing.step_s > 0.0 and not timing.is_disturbed]
    return median(timed) if timed else None
