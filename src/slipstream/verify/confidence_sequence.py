"""Decides whether a candidate is faster than the base, and by how much.

The method is a confidence sequence over paired log ratios, one per round. The sequence stays valid however often it is
evaluated and whenever the race stops, under any drift, outliers and autocorrelation. It assumes that the order of the
trials is drawn at random in every round. It does not model where a ratio comes from.

The sequence is valid for the following reason. Let x = log(base / candidate), and let the candidate be exp(t) times as
fast. Assume that the machine disturbs the trial that holds the baton, whichever it is. Base and candidate could have
drawn each other's place in the round. Given all earlier rounds, x - t is therefore as likely to be +d as -d. So for any
odd f with |f| < 1, 1 + f(x - t) is a fair bet. A gambler who starts with 1 and stakes everything in each round ever
reaches 1/alpha with probability at most alpha.

The bet is f(d) = 0.97 tanh(k clip(d / s)). For Gaussian noise this bet is nearly the most profitable of all bets that
need only symmetry. The scale s comes from earlier rounds, so a bad s costs power but never validity. The stake is
spread over a small grid of k. Because f is increasing, the wealth falls as t rises, and crosses 1/alpha once. Bisection
finds this crossing, which bounds the true t from below. A gambler who bets on the other side bounds t from above.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from slipstream.records import BlockTiming, Speed
from slipstream.records.race import FARTHEST

# Slopes of the bet, each with its share of the stake. The steepest slope is nearly a sign test and decides large gains
# in nine rounds. The flattest slope finds a gain of a fifth of the noise. The values are chosen by simulation.
SLOPES = ((2.0, 0.375), (0.8, 0.25), (0.4, 0.25), (0.15, 0.125))
# Slopes for a race of a hundred rounds or more, which need not be decided in nine rounds.
LONG_SLOPES = ((2.0, 0.1), (0.8, 0.2), (0.4, 0.45), (0.15, 0.25))
BOLDNESS = 0.97  # largest share of the wealth at stake, so that one outlier cannot ruin the gambler
CLIP = 2.0  # in scales; a larger deviation counts as this deviation
PRIOR_SCALE = 0.03  # scale of x, until rounds have shown the noise of the machine
NUM_PRIOR = 2  # the prior counts as this many rounds
SMALLEST_SCALE = 1e-4
_MAD_TO_SIGMA = 1.4826
_RESOLUTION = 5e-5  # precision of a bound of the log ratio
_PAIRS_UP_TO = 200  # rounds; more rounds have too many pairs, so the plain median is used


class ConfidenceSequence:
    """Compares a candidate with the base. Rounds are added as they come, and every method may be called at any time."""

    def __init__(self, slopes: Sequence[tuple[float, float]] = SLOPES) -> None:
        self._slopes = slopes
        self._ratios: list[float] = []
        self._scales: list[float] = []  # one per round, computed from earlier rounds
        self._ordered: list[float] = []
        self._wealths: dict[tuple[int, float], _Wealth] = {}

    @property
    def num_rounds(self) -> int:
        return len(self._ratios)

    def add(self, log_ratio: float) -> None:
        """Adds log(base / candidate) of one round, in seconds per step."""
        if not math.isfinite(log_ratio):
            raise ValueError(f"a log ratio must be finite, got {log_ratio}")
        self._scales.append(self._scale())
        self._ratios.append(log_ratio)
        insort(self._ordered, log_ratio)

    def add_timings(self, base: BlockTiming, candidate: BlockTiming) -> bool:
        """Adds the log ratio of two block timings of one round. Returns False, and adds nothing, if one of them was
        disturbed, failed or empty.
        """
        assert base.round == candidate.round, f"block timings of rounds {base.round} and {candidate.round} are no pair"
        if base.is_disturbed or candidate.is_disturbed or base.step_s <= 0.0 or candidate.step_s <= 0.0:
            return False
        self.add(math.log(base.step_s / candidate.step_s))
        return True

    def is_faster(self, margin: float = 0.0, alpha: float = 0.05) -> bool:
        """Whether the candidate is proved more than 1 + margin times as fast. With several candidates, each gets a
        share of alpha.
        """
        return self._wealth(+1, math.log1p(margin)) >= 1.0 / alpha

    def is_not_faster(self, margin: float = 0.0, alpha: float = 0.05) -> bool:
        """Whether the candidate is proved less than 1 + margin times as fast."""
        return self._wealth(-1, math.log1p(margin)) >= 1.0 / alpha

    def speed(self, alpha: float = 0.05) -> Speed:
        """Returns the centre of the ratios (Hodges-Lehmann) and an interval that is valid at all times
        simultaneously."""
        low, high = self._bound(+1, alpha / 2), self._bound(-1, alpha / 2)
        centre = min(max(_centre(self._ordered), low), high)
        return Speed(math.exp(centre), math.exp(low), math.exp(high), self.num_rounds)

    def _scale(self) -> float:
        """Returns the spread of the rounds so far around their median. The prior counts as NUM_PRIOR rounds."""
        middle = median(self._ordered) if self._ordered else 0.0
        away = [abs(ratio - middle) for ratio in self._ordered] + [PRIOR_SCALE / _MAD_TO_SIGMA] * NUM_PRIOR
        return max(SMALLEST_SCALE, _MAD_TO_SIGMA * median(away))

    def _wealth(self, side: int, centre: float) -> float:
        """Returns the wealth of the gambler who bets that the true value lies above (side +1) or below (-1) the
        centre."""
        wealth = self._wealths.setdefault((side, centre), _Wealth(side, centre, self._slopes))
        wealth.bet(self._ratios, self._scales)
        return wealth.wealth

    def _bound(self, side: int, alpha: float) -> float:
        """Returns the largest centre (side +1) or the smallest centre (-1) that the gambler has refuted. If none is
        refuted, returns the log of 1 / FARTHEST (side +1) or of FARTHEST (-1)."""

        ratios, scales = np.asarray(self._ratios), np.asarray(self._scales)

        def is_refuted(centre: float) -> bool:
            """Computes the same as `_Wealth`, but for all rounds at once, because a bound needs about twenty
            centres."""
            away = np.clip(side * (ratios - centre) / scales, -CLIP, CLIP)
            with np.errstate(over="ignore"):
                parts = [share * np.prod(1.0 + BOLDNESS * np.tanh(slope * away)) for slope, share in self._slopes]
            return bool(sum(parts) >= 1.0 / alpha)

        unknown = -side * math.log(FARTHEST)
        if not self._ratios:
            return unknown
        # Every bet is won in full from here outwards, so a centre that is not refuted here is not refuted farther out.
        reach = CLIP * max(self._scales)
        near, far = (
            (self._ordered[0] - reach, self._ordered[-1]) if side > 0 else (self._ordered[-1] + reach, self._ordered[0])
        )
        return _crossing(is_refuted, near, far) if is_refuted(near) else unknown


class _Wealth:
    """The wealth of one gambler, by slope. The gambler bets once on each round."""

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
    """Returns the last refuted value between `near`, which is refuted, and `far`, which is not."""
    while abs(far - near) > _RESOLUTION:
        middle = (near + far) / 2
        if is_refuted(middle):
            near = middle
        else:
            far = middle
    return near


def _centre(ordered: list[float]) -> float:
    """Returns the median of the means of all pairs, which is robust against outliers and nearly as precise as the mean.
    For more than _PAIRS_UP_TO rounds it returns the median."""
    if not ordered:
        return 0.0
    if len(ordered) > _PAIRS_UP_TO:
        return median(ordered)
    return median((left + right) / 2 for at, left in enumerate(ordered) for right in ordered[at:])
