"""Intervals for paired differences, by bootstrap over pairs. Needs only the standard library."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median

RESAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    middle: float
    low: float  # 95%
    high: float

    def shifted(self, by: float) -> Interval:
        return Interval(self.middle + by, self.low + by, self.high + by)


def paired_interval(differences: list[float], seed: int = 0) -> Interval:
    """The 95% interval of the median difference.

    The two measurements of a pair must be close in time, so that a disturbance of the machine affects both alike.
    """
    rng = random.Random(seed)
    medians = sorted(median(rng.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    return Interval(median(differences), medians[RESAMPLES * 25 // 1000], medians[RESAMPLES * 975 // 1000])
