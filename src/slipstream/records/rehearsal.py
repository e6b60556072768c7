"""A rehearsal: a remedy that is tried at the end of a check on a copy of the script's model, with the script's own
shapes. The copy is timed alternately with and without the remedy."""

from __future__ import annotations

from typing import Final

import msgspec

# How many times as slow as now a remedy must be to be hopeless: no setting of it, and no technique beside it, makes up
# for that.
HOPELESS: Final = 3.0


class Rehearsal(msgspec.Struct, frozen=True):
    remedy: str  # channels_last, fused_optimizer, threads, flush_denormals, bf16
    setting: str
    now_ms: float  # without the remedy: forward and backward pass of the copy, or the optimizer's step; median
    then_ms: float
    ratio: float  # now_ms / then_ms, median of the pairs
    low: float  # 95% interval of that median
    high: float
    num_pairs: int
    breaks_values: bool = False  # results are not finite with the remedy, but finite without it
