"""Decides whether a recipe is faster than the base, and by how much. The method is a confidence sequence for the mean
of log ratios, one from each pair of new processes.

The ratio of a pair contains everything that distinguishes its two processes. This includes noise of the blocks, and
properties that a process keeps for its whole life, such as the layout of its memory. The spread between pairs covers
all of these, so their sizes need not be known. The sequence assumes that the log ratios are independent and roughly
normal.

The sequence comes from a t-test with a normal prior of variance c² on the effect in standard deviations. With n pairs
of mean m̄, S(θ) = Σ(xᵢ - θ)² and m = m̄ - θ, the interval contains every θ with

    √(c² / (n + c²)) · (S / (S - (n m)² / (n + c²)))^(n / 2) ≤ 1 / alpha

The result is the intersection of the intervals for all n so far. It contains the true mean for all n at once with a
probability of at least 1 - alpha. A proof may therefore look at the interval after every pair and stop at any time. See
docs/statistics.md."""

from __future__ import annotations

import math
from statistics import fmean, stdev

from slipstream.records import Speed
from slipstream.records.race import FARTHEST

PRIOR = 0.1  # c², chosen by simulation: with this value the interval is sharpest for effects that need a dozen pairs
LEAST_SPREAD = 1e-4  # the smallest standard deviation of a log ratio that clocks and blocks can resolve


class TSequence:
    """The confidence sequence. Pairs are added one by one, and every method may be called at any time."""

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
        # If an earlier interval excluded a value, this value stays excluded.
        self._low = max(self._low, middle - half_width)
        self._high = min(self._high, middle + half_width)

    def is_above(self, gain: float) -> bool:
        """Whether the recipe is proved more than 1 + `gain` times as fast."""
        return self._low > math.log1p(gain)

    def is_below(self, gain: float) -> bool:
        """Whether the recipe is proved less than 1 + `gain` times as fast."""
        return self._high < math.log1p(gain)

    def width(self) -> float:
        """Returns the length of the interval of the log ratio."""
        return self._high - self._low

    def spread(self) -> float:
        """Returns the standard deviation of the pairs, or 0 for fewer than three pairs."""
        return stdev(self.log_ratios) if self.num_pairs > 2 else 0.0

    def speed(self) -> Speed:
        """Returns the mean ratio and its interval. A bound without evidence is FARTHEST or its inverse."""
        if not self.log_ratios:
            return Speed(1.0, 1.0 / FARTHEST, FARTHEST)
        farthest = math.log(FARTHEST)
        low, high = max(self._low, -farthest), min(self._high, farthest)
        middle = fmean(self.log_ratios)
        if low <= high:
            middle = min(max(middle, low), high)
        return Speed(math.exp(middle), math.exp(low), math.exp(high), self.num_pairs)

    def _half_width(self) -> float:
        """Returns half the length of the interval. Solves the condition at the top of this module for m². The condition
        contains m² twice, because S is the sum of squares around the mean plus n m²."""
        count = self.num_pairs
        if count < 2:
            return math.inf
        middle = fmean(self.log_ratios)
        squares = sum((one - middle) ** 2 for one in self.log_ratios)
        squares = max(squares, (count - 1) * LEAST_SPREAD**2)
        shrinkage = PRIOR / (count + PRIOR)
        threshold = (1.0 / (self._alpha * math.sqrt(shrinkage))) ** (2.0 / count)
        if threshold * shrinkage >= 1.0:  # so few pairs exclude no value, even if they are equal
            return math.inf
        return math.sqrt(squares * (threshold - 1.0) / (1.0 - threshold * shrinkage) / count)
