"""Steps may take longer, or less, as a training goes on: numbers become denormal, sequences grow, caches fill. Then two
riders can be compared at equal steps only. From laps alone: whether it was the machine cannot be told here."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from slipstream.diagnose.statistics import median
from slipstream.records import BlockTiming

AGED = 1.35  # times as long at the end as at the beginning; a machine's moods reach a quarter, for hundreds of steps
AGED_A_LITTLE = 1.1  # where the promise is at stake
FEWEST = 4  # blocks: of fewer nothing can be said
FIRST = 1  # that find everything cold
UNLIKELY = 2.0  # standard errors
CLEAR = 3.0  # what is told must be clearer


def change(timings: Sequence[BlockTiming]) -> float | None:
    """How many times as long the steps of one process take in the last third of its blocks as in the first; 1.0 where
    its blocks differ from one to the next so much that they may have come out like this by chance."""
    logs = [math.log(timing.step_s) for timing in timings[FIRST:] if timing.step_s > 0.0]
    if len(logs) < FEWEST:
        return None
    third = max(2, len(logs) // 3)
    apart = median(logs[-third:]) - median(logs[:third])
    noise = statistics.fmean((late - early) ** 2 for early, late in itertools.pairwise(logs)) / 2  # blind to a trend
    return math.exp(apart) if abs(apart) > UNLIKELY * math.sqrt(2 * noise / third) else 1.0


def change_of_all(trials: Sequence[Sequence[BlockTiming]]) -> float:
    """By the middle one of those that can tell; 1.0 where none can."""
    known = [one for one in map(change, trials) if one is not None]
    return median(known) if known else 1.0


def is_ageing(times: float, is_final: bool = False) -> bool:
    """`is_final`: in the race of the whole recipe, to catch up in vain costs less than to be wrong."""
    most = AGED_A_LITTLE if is_final else AGED
    return not 1.0 / most < times < most


def trend(starts: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Of what is gained, from the log ratios of one start after another, each from its first block on: what it is in
    the first third of a ride and in the last. None: no clear difference."""
    early = [log for logs in starts for log in logs[: len(logs) // 3]]
    late = [log for logs in starts for log in logs[len(logs) - len(logs) // 3 :]]
    if min(len(early), len(late)) < FEWEST:
        return None
    apart = statistics.median(late) - statistics.median(early)
    error = math.sqrt((statistics.variance(early) + statistics.variance(late)) / len(early))
    if abs(apart) < max(math.log(AGED_A_LITTLE), CLEAR * error):
        return None
    return math.exp(statistics.median(early)), math.exp(statistics.median(late))
