"""Is a candidate faster than the base, and by how much? A confidence sequence from paired log ratios, one per round:
valid however often one looks and whenever one stops, whatever the drift, the outliers and the autocorrelation.
Assumes that the order of riders was drawn anew in every round; knows nothing of why a ratio is what it is.

Why it holds. x = log(base / candidate). If the candidate is exp(t) times as fast and the machine disturbs whoever holds
the baton, then given all that went before, x - t is as likely to be +d as -d: base and candidate could as well have
drawn each other's place in the round. So for any odd f, 1 + f(x - t) with |f| < 1 is a fair bet, and a gambler who
starts with 1 and stakes everything each round ever sees 1/alpha with probability alpha at most. We take
f(d) = 0.97 tanh(k clip(d / s)): for Gaussian noise nearly the most profitable of all bets that need symmetry alone.
The scale s comes from earlier rounds, so an unlucky s costs power and never validity; k is a small grid over which
the stake is spread. f rises, so the wealth falls as t rises: one crossing, found by bisection, bounds the true t from
below; the mirrored gambler bounds it from above. See docs/statistics.md.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from slipstream.records import BlockTiming, Speed
from slipstream.records.race import FARTHEST

# Slopes of the bet and the share of the stake on each. The steepest is nearly a sign test and decides large gains in
# nine rounds; the flattest finds a gain of a fifth of the noise. Chosen by simulation, see docs/statistics.md.
SLOPES = ((2.0, 0.375), (0.8, 0.25), (0.4, 0.25), (0.15, 0.125))
# For a race of a hundred rounds or more, which need not be decided in nine.
LONG_SLOPES = ((2.0, 0.1), (0.8, 0.2), (0.4, 0.45), (0.15, 0.25))
BOLDNESS = 0.97  # of the wealth at stake at most: one outlier must not ruin the gambler
CLIP = 2.0  # in scales: farther out it matters only that it was far
PRIOR_SCALE = 0.03  # of x, until rounds have shown the machine's own
NUM_PRIOR = 2  # rounds that the prior counts for
SMALLEST_SCALE = 1e-4
_MAD_TO_SIGMA = 1.4826
_RESOLUTION = 5e-5  # of a bound
_PAIRS_UP_TO = 200  # rounds; beyond, pairs of rounds are too many and the plain median does


class ConfidenceSequence:
    """A candidate against the base. Rounds are added as they come; every question may be asked at any time."""

    def __init__(self, slopes: Sequence[tuple[float, float]] = SLOPES) -> None:
        self._slopes = slopes
        self._ratios: list[float] = []
        self._scales: list[float] = []  # of each round, known before it
        self._ordered: list[float] = []
        self._purses: dict[tuple[int, float], _Wealth] = {}

    @property
    def num_rounds(self) -> int:
        return len(self._ratios)

    def add(self, log_ratio: float) -> None:
        """log(base / candidate) of one round, in seconds per step."""
        if not math.isfinite(log_ratio):
            raise ValueError(f"a log ratio must be finite, got {log_ratio}")
        self._scales.append(self._scale())
        self._ratios.append(log_ratio)
        insort(self._ordered, log_ratio)

    def add_timings(self, base: BlockTiming, candidate: BlockTiming) -> bool:
        """Pairs two laps of one round. False: one was disturbed, failed or empty, and nothing was added."""
        assert base.round == candidate.round, f"laps of rounds {base.round} and {candidate.round} are no pair"
        if base.is_disturbed or candidate.is_disturbed or base.step_s <= 0.0 or candidate.step_s <= 0.0:
            return False
        self.add(math.log(base.step_s / candidate.step_s))
        return True

    def is_faster(self, margin: float = 0.0, alpha: float = 0.05) -> bool:
        """Beyond doubt more than 1 + margin times as fast. Of several candidates each gets its share of alpha."""
        return self._wealth(+1, math.log1p(margin)) >= 1.0 / alpha

    def is_not_faster(self, margin: float = 0.0, alpha: float = 0.05) -> bool:
        """Beyond doubt less than 1 + margin times as fast."""
        return self._wealth(-1, math.log1p(margin)) >= 1.0 / alpha

    def speed(self, alpha: float = 0.05) -> Speed:
        """The centre of the ratios (Hodges and Lehmann) and an interval that holds at every look at once."""
        low, high = self._bound(+1, alpha / 2), self._bound(-1, alpha / 2)
        centre = min(max(_centre(self._ordered), low), high)
        return Speed(math.exp(centre), math.exp(low), math.exp(high), self.num_rounds)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _scale(self) -> float:
        """The spread of the rounds so far, about their median; the prior counts as a round or two."""
        middle = median(self._ordered) if self._ordered else 0.0
        away = [abs(ratio - middle) for ratio in self._ordered] + [PRIOR_SCALE / _MAD_TO_SIGMA] * NUM_PRIOR
        return max(SMALLEST_SCALE, _MAD_TO_SIGMA * median(away))

    def _wealth(self, side: int, centre: float) -> float:
        """Of the gambler who bets that the truth lies above (side +1) or below (-1) the centre."""
        wealth = self._purses.setdefault((side, centre), _Wealth(side, centre, self._slopes))
        wealth.bet(self._ratios, self._scales)
        return wealth.wealth

    def _bound(self, side: int, alpha: float) -> float:
        """The largest centre (side +1) that the gambler has refuted, or the smallest (-1)."""

        ratios, scales = np.asarray(self._ratios), np.asarray(self._scales)

        def is_refuted(centre: float) -> bool:
            """As a purse would have it, all rounds at once: a bound asks at twenty centres."""
            away = np.clip(side * (ratios - centre) / scales, -CLIP, CLIP)
            with np.errstate(over="ignore"):
                parts = [share * np.prod(1.0 + BOLDNESS * np.tanh(slope * away)) for slope, share in self._slopes]
            return bool(sum(parts) >= 1.0 / alpha)

        unknown = -side * math.log(FARTHEST)
        if not self._ratios:
            return unknown
        # Every bet is won in full from here outwards, so what is not refuted here is refuted nowhere
        reach = CLIP * max(self._scales)
        near, far = (
            (self._ordered[0] - reach, self._ordered[-1]) if side > 0 else (self._ordered[-1] + reach, self._ordered[0])
        )
        return _crossing(is_refuted, near, far) if is_refuted(near) else unknown


class _Wealth:
    """One gambler's wealth, by slope. Bets each round once."""

    def __init__(self, side: int, centre: float, slopes: Sequence[tuple[float, float]]) -> None:
        self.side = side
        self.centre = centre
        self._slopes = slopes
        self._parts = [share for _, share in slopes]
        self._num_bets = 0

    @property
    def wealth(self) -> float:
        return sum(self._parts)

    def bet(self, ratios: list[float], scales: list[float]) -> None:
        for at in range(self._num_bets, len(ratios)):
            away = self.side * (ratios[at] - self.centre) / scales[at]
            away = max(-CLIP, min(CLIP, away))
            for number, (slope, _) in enumerate(self._slopes):
                self._parts[number] *= 1.0 + BOLDNESS * math.tanh(slope * away)
        self._num_bets = len(ratios)


def _crossing(is_refuted: Callable[[float], bool], near: float, far: float) -> float:
    """The last refuted place between `near`, which is refuted, and `far`, which is not."""
    while abs(far - near) > _RESOLUTION:
        middle = (near + far) / 2
        if is_refuted(middle):
            near = middle
        else:
            far = middle
    return near


def _centre(ordered: list[float]) -> float:
    """The median of all pairs' means: as robust as the median, nearly as sharp as the mean."""
    if not ordered:
        return 0.0
    if len(ordered) > _PAIRS_UP_TO:
        return median(ordered)
    return median((left + right) / 2 for at, left in enumerate(ordered) for right in ordered[at:])
