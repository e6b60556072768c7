"""Order statistics and robust slopes in plain Python. The records are small, so no array library is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

__all__ = [
    "fmean",
    "group_means",
    "hodges_lehmann",
    "median",
    "median_interval",
    "middle_half",
    "rising_share",
    "robust_slope",
]


def group_means(values: Sequence[float], size: int) -> list[float]:
    """Means of consecutive groups of `size` values.

    An incomplete last group may contain only a part of a burst, so it is left out unless it is the only group.
    """
    full = len(values) // size * size
    if full == 0:
        return [fmean(values)] if values else []
    return [fmean(values[at : at + size]) for at in range(0, full, size)]


def hodges_lehmann(values: Sequence[float]) -> float:
    """The median of the means of all pairs. It is nearly as robust as the median and nearly as precise as the mean."""
    return median((left + right) / 2 for at, left in enumerate(values) for right in values[at:])


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the median, from order statistics. It assumes nothing about the distribution.

    With fewer than six values it is the range of the values, which contains the median less often.
    """
    if not values:
        return 0.0, 0.0
    ordered = sorted(values)
    rank = _binomial_rank(len(ordered))
    return ordered[rank], ordered[-1 - rank]


def _binomial_rank(count: int) -> int:
    """The largest r with P(at most r of `count` coins show heads) <= 2.5%; 0 if there is no such r.

    For large counts the normal approximation is used.
    """
    if count > 500:
        return max(0, math.floor(count / 2 - 1.96 * math.sqrt(count) / 2) - 1)
    tail, rank = 0.0, -1
    while rank < count // 2:
        tail += math.comb(count, rank + 1) * 0.5**count
        if tail > 0.025:
            break
        rank += 1
    return max(0, rank)


def middle_half(ordered: Sequence[int]) -> list[int]:
    """The middle half of an ordered sequence; not empty unless the sequence is empty."""
    quarter = len(ordered) // 4
    return list(ordered[quarter : len(ordered) - quarter])


def robust_slope(points: Sequence[tuple[float, float]], max_points: int = 120) -> float:
    """The Theil-Sen slope: the median of the slopes of all pairs of points. A single jump hardly changes it."""
    thinned = points[:: max(1, len(points) // max_points)]
    slopes = [
        (right[1] - left[1]) / (right[0] - left[0])
        for at, left in enumerate(thinned)
        for right in thinned[at + 1 :]
        if right[0] != left[0]
    ]
    return median(slopes) if slopes else 0.0


def rising_share(values: Sequence[float], num_bins: int = 10) -> float:
    """The share of bins whose mean is larger than the previous bin's mean; 1.0 for values that always grow."""
    size = max(1, len(values) // num_bins)
    means = group_means(values, size)
    if len(means) < 2:
        return 0.0
    return sum(right > left for left, right in pairwise(means)) / (len(means) - 1)
