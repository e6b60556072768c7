"""A remedy tried on a copy, after the ride: the script's own model and shapes, timed with and without it by turns."""

from __future__ import annotations

import msgspec


class Rehearsal(msgspec.Struct, frozen=True):
    remedy: str  # channels_last, fused_optimizer, threads, flush_denormals, bf16
    setting: str
    now_ms: float  # forward and backward of the copy (or the optimizer's step) as it is; median
    then_ms: float
    ratio: float  # now over then, median of pairs
    low: float  # 95% interval of that median
    high: float
    num_pairs: int
    breaks_values: bool = False  # with the remedy, and not without it, results are not finite
