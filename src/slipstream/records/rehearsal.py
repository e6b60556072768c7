"""A rehearsal: a remedy that is tried at the end of a check on a copy of the script's model, with the script's own
shapes. The copy is timed alternately with and without the remedy."""

from __future__ import annotations

from typing import Final

import msgspec

# A remedy that makes the copy slower by this factor is not raced. No other setting and no further technique compensates
# for this factor.
HOPELESS: Final = 3.0


class Rehearsal(msgspec.Struct, frozen=True):
    remedy: str  # channels_last, fused_optimizer, threads, flush_denormals, bf16
    setting: str
    now_ms: float  # median time without the remedy, of forward and backward pass of the copy or of the optimizer's step
    then_ms: float  # median time with the remedy
    ratio: float  # now_ms / then_ms, median of the pairs
    low: float  # 95% interval of that median
    high: float
    num_pairs: int
    breaks_values: bool = False  # whether results are finite without the remedy, but not with it
