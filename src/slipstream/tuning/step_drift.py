"""Detects a script whose steps become slower during the training, for example because numbers become denormal,
sequences grow or caches fill."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from slipstream.diagnose.statistics import median
from slipstream.records import BlockTiming

SLOWER = 1.35  # ratio of late to early steps; the machine's speed alone can change by a quarter for hundreds of steps
FEWEST = 5  # blocks; fewer blocks show no trend
UNLIKELY = 2.0  # standard errors; noise alone rarely causes a larger trend


def is_slowing(timings: Sequence[BlockTiming]) -> bool:
    """Whether the last third of a process's blocks is slower than the first third. The difference must exceed SLOWER
    and the noise between neighbouring blocks."""
    logs = [math.log(timing.step_s) for timing in timings if timing.step_s > 0.0]
    if len(logs) < FEWEST:
        return False
    third = max(2, len(logs) // 3)
    apart = median(logs[-third:]) - median(logs[:third])
    # The noise is computed from neighbouring blocks, so a trend hardly affects it.
    noise = statistics.fmean((late - early) ** 2 for early, late in itertools.pairwise(logs)) / 2
    return apart > max(math.log(SLOWER), UNLIKELY * math.sqrt(2 * noise / third))
