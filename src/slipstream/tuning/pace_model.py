"""How all riders compare, from all rounds at once: what a round was like is read off everyone who rode in it, not off
the anchor's one block. Sharper than pairs, and no proof: for who goes on, who waits and what is built on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from slipstream.records import BlockTiming

NUM_SHARED = 10  # rounds that everybody's restlessness counts for in one rider's
SWEEPS = 2  # for each look: the last one's answer is nearly this one's


class PaceModel:
    """Log step = the round's pace + the rider's, as least squares have it, by turns; extremes count for little."""

    def __init__(self) -> None:
        self._rounds: list[dict[int, float]] = []  # log seconds per step, by rider
        self._ridden: dict[int, list[int]] = {}  # rounds, by rider
        self._round_paces: list[float] = []
        self._paces: dict[int, float] = {}  # by rider
        self._squares: dict[int, float] = {}  # of what is left over, by rider
        self._shared = 0.0  # the variance of a block, whoever's
        self._is_stale = False

    def add(self, timings: Mapping[int, BlockTiming]) -> None:
        """One round, by rider; disturbed blocks count for nothing, nor does who rode alone."""
        logs = {who: math.log(timing.step_s) for who, timing in timings.items() if is_timed(timing)}
        if len(logs) < 2:
            return
        known = [log - self._paces[who] for who, log in logs.items() if who in self._paces]
        pace = middle(known or list(logs.values()))
        for who, log in logs.items():
            self._ridden.setdefault(who, []).append(len(self._rounds))
            self._paces.setdefault(who, log - pace)
        self._rounds.append(logs)
        self._round_paces.append(pace)
        self._is_stale = True

    def num_rounds(self, who: int) -> int:
        return len(self._ridden.get(who, ()))

    def gain(self, who: int, anchor: int) -> float:
        """The log of how many times as fast."""
        self._fit()
        return self._paces[anchor] - self._paces[who]

    def uncertainty(self, who: int, anchor: int) -> float:
        """Of that, as one standard deviation."""
        self._fit()
        return math.sqrt(sum(self._variance(one) / len(self._ridden[one]) for one in (who, anchor)))

    def _fit(self) -> None:
        if not self._is_stale:
            return
        for _ in range(SWEEPS):
            paces = self._paces
            self._round_paces = [middle([log - paces[who] for who, log in logs.items()]) for logs in self._rounds]
            self._paces = {
                who: middle([self._rounds[at][who] - self._round_paces[at] for at in ridden])
                for who, ridden in self._ridden.items()
            }
        self._squares = {who: self._sum_of_squares(who) for who in self._ridden}
        num_free = sum(len(ridden) - 1 for ridden in self._ridden.values())
        self._shared = sum(self._squares.values()) / max(1, num_free)
        self._is_stale = False

    def _sum_of_squares(self, who: int) -> float:
        """Of its blocks about their rounds' paces, which they have helped to make."""
        own, total = self._paces[who], 0.0
        for at in self._ridden[who]:
            logs = self._rounds[at]
            total += (logs[who] - self._round_paces[at] - own) ** 2 * len(logs) / (len(logs) - 1)
        return total

    def _variance(self, who: int) -> float:
        """Of one block. Few rounds of its own say little: until then it is taken to be as restless as all of them."""
        num_free = len(self._ridden[who]) - 1
        return max(1e-12, (self._squares[who] + NUM_SHARED * self._shared) / (num_free + NUM_SHARED))


def is_timed(timing: BlockTiming) -> bool:
    return not timing.failure and not timing.is_disturbed and timing.step_s > 0.0


def middle(values: Sequence[float]) -> float:
    """The mean of the middle half."""
    ordered, cut = sorted(values), len(values) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])
