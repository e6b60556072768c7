"""Bursts of load: times at which another program keeps cores busy. The seed determines the bursts.

Simulated backends use these bursts as load, and benchmarks/noisy.py produces them on a real machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

BUSY_SHARE = 0.3  # Share of the time that bursts take
SHORTEST_S, LONGEST_S = 1.0, 60.0
MOST_CORES = 2
_PAUSE_S = (SHORTEST_S + LONGEST_S) / 2 * (1 - BUSY_SHARE) / BUSY_SHARE  # Mean time between two bursts


class Burst(NamedTuple):
    start_s: float
    end_s: float
    num_cores: int


class LoadBursts:
    """An endless sequence of bursts in the order of time. Bursts do not overlap."""

    def __init__(self, seed: int) -> None:
        self._bursts = _bursts(random.Random(seed))
        self._next = next(self._bursts)

    def upcoming(self, now_s: float) -> Burst:
        """Returns the burst at this second, or the next burst after it. The argument must not decrease from call to
        call."""
        while self._next.end_s <= now_s:
            self._next = next(self._bursts)
        return self._next

    def num_cores(self, now_s: float) -> int:
        """Returns the number of cores that a burst keeps busy at this second."""
        burst = self.upcoming(now_s)
        return burst.num_cores if burst.start_s <= now_s else 0


def _bursts(rng: random.Random) -> Iterator[Burst]:
    now_s = 0.0
    while True:
        now_s += rng.expovariate(1 / _PAUSE_S)
        burst = Burst(now_s, now_s + rng.uniform(SHORTEST_S, LONGEST_S), rng.randint(1, MOST_CORES))
        yield burst
        now_s = burst.end_s
