"""95% intervals of differences, shares, medians and means. Needs only the standard library."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median, stdev

RESAMPLES = 4000
TAIL = 0.025  # Probability on each side of a 95% interval
# The number of values in `mean_interval`, and the quantile 1 - TAIL of Student's t with NUM_VALUES - 1 degrees of
# freedom
NUM_VALUES, T_QUANTILE = 6, 2.571


@dataclass(frozen=True)
class Interval:
    middle: float
    low: float  # Lower end of the 95% interval
    high: float  # Upper end of the 95% interval

    def shifted(self, by: float) -> Interval:
        return Interval(self.middle + by, self.low + by, self.high + by)


def paired_interval(differences: list[float], seed: int = 0) -> Interval:
    """The 95% interval of the median difference.

    The two measurements of a pair must be close in time, so that a disturbance of the machine affects both alike.
    """
    rng = random.Random(seed)
    medians = sorted(median(rng.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    return Interval(median(differences), medians[RESAMPLES * 25 // 1000], medians[RESAMPLES * 975 // 1000])


def binomial_interval(num_true: int, num: int) -> Interval:
    """The 95% interval of a share, after Clopper and Pearson."""

    def bound(is_enough: Callable[[float], bool]) -> float:
        """The smallest share for which `is_enough` holds, by bisection."""
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return high

    low = bound(lambda share: 1 - _at_most(num_true - 1, num, share) >= TAIL) if num_true else 0.0
    high = bound(lambda share: _at_most(num_true, num, share) <= TAIL) if num_true < num else 1.0
    return Interval(num_true / num if num else 0.0, low, high)


def median_interval(values: list[float]) -> Interval:
    """The 95% interval of the median of the distribution, from order statistics. With few values, the whole range."""
    ordered, num = sorted(values), len(values)
    at = max((k for k in range(num // 2) if _at_most(k, num, 0.5) <= TAIL), default=0)
    return Interval(median(ordered), ordered[at], ordered[num - 1 - at])


def mean_interval(values: list[float]) -> Interval:
    """The 95% interval of the mean by Student's t, for NUM_VALUES values."""
    assert len(values) == NUM_VALUES
    half = T_QUANTILE * stdev(values) / len(values) ** 0.5
    return Interval(fmean(values), fmean(values) - half, fmean(values) + half)


def _at_most(num_true: int, num: int, share: float) -> float:
    return math.fsum(math.comb(num, k) * share**k * (1 - share) ** (num - k) for k in range(num_true + 1))
