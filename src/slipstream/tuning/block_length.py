"""How many steps a block has: long enough to time, short enough that a drifting machine meets all riders alike."""

from __future__ import annotations

import math

import msgspec

from slipstream.diagnose.statistics import median
from slipstream.records import Lap

BLOCK_S = 0.1  # noise lasts about a second where we looked: short blocks share it best, and more of them fit
FEW_STEPS = 2  # at the least: a step may take twice as long as the next, by turns
MOST_AT_ONCE = 4  # batches of several workers arrive in bursts: fewer steps would time a burst
ENOUGH_S = 0.5  # where even so few steps are a long block, bursts fall now here, now there
LONG_STEP_S = 2.0  # from here a single step is a block
SHORT_EPOCH_S = 2.5
LEAD_IN_SHARE = 16  # one step in so many; caches are cold when the baton comes


class Tempo(msgspec.Struct, frozen=True):
    """What is known of a script's steps before it is raced."""

    step_s: float
    epoch_steps: int = 0  # 0: not known, or not a whole number
    training_steps: int = 0  # 0: not known
    at_once: int = MOST_AT_ONCE  # batches that may arrive in one burst


def block(tempo: Tempo, times: int = 1) -> tuple[int, int]:
    """How many steps are timed, and how many lead in. Where epochs are short a block and its lead-in are whole epochs:
    what an epoch's start costs comes round in every block and not in some of them. Never more than a third of the
    whole training, where its length is known: a script that ends inside its first block is never timed."""
    num_steps = times * (1 if tempo.step_s > LONG_STEP_S else _num_steps(tempo))
    lead_in = max(1, num_steps // LEAD_IN_SHARE)
    if _is_short(tempo):
        num_steps = math.ceil((num_steps + lead_in) / tempo.epoch_steps) * tempo.epoch_steps - lead_in
    if tempo.training_steps and num_steps + lead_in > tempo.training_steps // 3:
        lead_in = 1
        num_steps = max(1, tempo.training_steps // 3 - lead_in)
    return num_steps, lead_in


def _num_steps(tempo: Tempo) -> int:
    step_s = max(tempo.step_s, 1e-6)
    burst = min(tempo.at_once, MOST_AT_ONCE, round(ENOUGH_S / step_s))
    return max(FEW_STEPS, burst, round(BLOCK_S / step_s))


def evened(lap: Lap, tempo: Tempo) -> Lap:
    """With its share of an epoch's beginning, whether one fell into it or not. Blocks of whole epochs have it all."""
    if not lap.num_steps or not tempo.epoch_steps or _is_short(tempo):
        return lap
    share_s = lap.epoch_start_s * lap.num_steps / tempo.epoch_steps
    return msgspec.structs.replace(lap, seconds=max(0.0, lap.seconds - lap.starts_s) + share_s)


def _is_short(tempo: Tempo) -> bool:
    return tempo.epoch_steps > 0 and tempo.epoch_steps * tempo.step_s <= SHORT_EPOCH_S


def typical_step_s(laps: list[Lap]) -> float | None:
    """The median over blocks that count."""
    timed = [lap.step_s for lap in laps if lap.step_s > 0.0 and not lap.is_disturbed]
    return median(timed) if timed else None
