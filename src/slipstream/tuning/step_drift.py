"""Detects step times that change during a training: numbers become denormal, sequences grow, caches fill. Two trials
can then only be compared at equal steps. Detection uses block timings only, so that it cannot exclude the machine as
the cause."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from slipstream.diagnose.statistics import median
from slipstream.records import BlockTiming

DRIFT = 1.35  # ratio of late to early step times; a machine's speed alone can change by a quarter for hundreds of steps
SMALL_DRIFT = 1.1  # for the final race
FEWEST = 4  # blocks; fewer show nothing
FIRST = 1  # leading blocks that are ignored, because caches are cold
UNLIKELY = 2.0  # standard errors
CLEAR = 3.0  # standard errors for a note to the user


def change(timings: Sequence[BlockTiming]) -> float | None:
    """The ratio of step times in the last third of a process's blocks to those in the first third. It is 1.0 if the
    difference is within the noise between neighbouring blocks. None if there are too few blocks."""
    logs = [math.log(timing.step_s) for timing in timings[FIRST:] if timing.step_s > 0.0]
    if len(logs) < FEWEST:
        return None
    third = max(2, len(logs) // 3)
    apart = median(logs[-third:]) - median(logs[:third])
    # From neighbouring blocks, so that a trend hardly affects it.
    noise = statistics.fmean((late - early) ** 2 for early, late in itertools.pairwise(logs)) / 2
    return math.exp(apart) if abs(apart) > UNLIKELY * math.sqrt(2 * noise / third) else 1.0


def change_of_all(trials: Sequence[Sequence[BlockTiming]]) -> float:
    """The median change over all trials with enough blocks, or 1.0 if there is none."""
    known = [one for one in map(change, trials) if one is not None]
    return median(known) if known else 1.0


def is_drifting(times: float, is_final: bool = False) -> bool:
    """Whether step times drift. The limit is lower if `is_final`: in the final race an unnecessary catch-up costs less
    than a wrong result."""
    most = SMALL_DRIFT if is_final else DRIFT
    return not 1.0 / most < times < most


def trend(starts: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The gain in the first and in the last third of a run, from the log ratios of each start. None: no clear
    difference."""
    early = [log for logs in starts for log in logs[: len(logs) // 3]]
    late = [log for logs in starts for log in logs[len(logs) - len(logs) // 3 :]]
    if min(len(early), len(late)) < FEWEST:
        return None
    apart = statistics.median(late) - statistics.median(early)
    error = math.sqrt((statistics.variance(early) + statistics.variance(late)) / len(early))
    if abs(apart) < max(math.log(SMALL_DRIFT), CLEAR * error):
        return None
    return math.exp(statistics.median(early)), math.exp(statistics.median(late))
