"""A confidence sequence for the mean of log ratios, one from each pair of new processes: is a recipe faster than the
base, and by how much?

The ratio of a pair contains everything that distinguishes its two processes: noise of the blocks, and luck that a
process keeps for its whole life, such as the layout of its memory. So the spread between pairs covers all of it, and
nothing must be known about it. The sequence assumes that the log ratios are independent and roughly normal.

The method is the confidence sequence for a t-test with a normal prior of variance c² on the effect in standard
deviations. With n pairs of mean m̄, S(θ) = Σ(xᵢ - θ)² and m = m̄ - θ, the interval holds every θ with

    √(c² / (n + c²)) · (S / (S - (n m)² / (n + c²)))^(n / 2) ≤ 1 / alpha

It covers the true mean at all n at once with probability 1 - alpha, so a race may look after every pair and stop at any
time. See docs/statistics.md.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev

from slipstream.records import Speed
from slipstream.records.race import FARTHEST

PRIOR = 0.1  # c²: small, so that it is sharpest for effects that need a dozen pairs; chosen by simulation
LEAST_SPREAD = 1e-4  # standard deviation of a log ratio: clocks and blocks resolve no less


class TSequence:
    """Pairs are added as they come. Every method may be called at any time."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self.log_ratios: list[float] = []
        self._low, self._high = -math.inf, math.inf

    @property
    def num_pairs(self) -> int:
        return len(self.log_ratios)

    def add(self, log_ratio: float) -> None:
        """Adds log(base / recipe) of one pair, in seconds per step."""
        if not math.isfinite(log_ratio):
            raise ValueError(f"a log ratio must be finite, got {log_ratio}")
        self.log_ratios.append(log_ratio)
        half_width = self._half_width()
        middle = fmean(self.log_ratios)
        # A value that any earlier interval excluded stays excluded.
        self._low = max(self._low, middle - half_width)
        self._high = min(self._high, middle + half_width)

    def is_above(self, gain: float) -> bool:
        """Whether the recipe is proved more than 1 + `gain` times as fast."""
        return self._low > math.log1p(gain)

    def is_below(self, gain: float) -> bool:
        """Whether the recipe is proved less than 1 + `gain` times as fast."""
        return self._high < math.log1p(gain)

    def width(self) -> float:
        """The length of the interval of the log ratio."""
        return self._high - self._low

    def spread(self) -> float:
        """The standard deviation of the pairs, or 0 as long as they do not show it."""
        return stdev(self.log_ratios) if self.num_pairs > 2 else 0.0

    def speed(self) -> Speed:
        """The mean ratio and its interval. Without evidence for a bound, it has the value FARTHEST."""
        if not self.log_ratios:
            return Speed(1.0, 1.0 / FARTHEST, FARTHEST)
        farthest = math.log(FARTHEST)
        low, high = max(self._low, -farthest), min(self._high, farthest)
        middle = fmean(self.log_ratios)
        if low <= high:
            middle = min(max(middle, low), high)
        return Speed(math.exp(middle), math.exp(low), math.exp(high), self.num_pairs)

    def _half_width(self) -> float:
        """Solves the condition above for m², which appears in it twice: S = (sum of squares) + n m²."""
        count = self.num_pairs
        if count < 2:
            return math.inf
        middle = fmean(self.log_ratios)
        squares = sum((one - middle) ** 2 for one in self.log_ratios)
        squares = max(squares, (count - 1) * LEAST_SPREAD**2)
        shrinkage = PRIOR / (count + PRIOR)
        threshold = (1.0 / (self._alpha * math.sqrt(shrinkage))) ** (2.0 / count)
        if threshold * shrinkage >= 1.0:  # so few pairs exclude nothing, however alike they are
            return math.inf
        return math.sqrt(squares * (threshold - 1.0) / (1.0 - threshold * shrinkage) / count)
