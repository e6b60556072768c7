"""Bursts of load: another program that keeps cores busy for a while, now and then. The seed determines them.

Simulated backends calculate with them. benchmarks/noisy.py makes them on a real machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

BUSY_SHARE = 0.3  # of the time
SHORTEST_S, LONGEST_S = 1.0, 60.0
MOST_CORES = 2
_PAUSE_S = (SHORTEST_S + LONGEST_S) / 2 * (1 - BUSY_SHARE) / BUSY_SHARE  # on average between two bursts


class Burst(NamedTuple):
    start_s: float
    end_s: float
    num_cores: int


class LoadBursts:
    """Endless bursts in the order of time, none beside another."""

    def __init__(self, seed: int) -> None:
        self._bursts = _bursts(random.Random(seed))
        self._next = next(self._bursts)

    def upcoming(self, now_s: float) -> Burst:
        """The burst at that second, or the next one after it. Times must not decrease from call to call."""
        while self._next.end_s <= now_s:
            self._next = next(self._bursts)
        return self._next

    def num_cores(self, now_s: float) -> int:
        """Cores that are kept busy at that second."""
        burst = self.upcoming(now_s)
        return burst.num_cores if burst.start_s <= now_s else 0


def _bursts(rng: random.Random) -> Iterator[Burst]:
    now_s = 0.0
    while True:
        now_s += rng.expovariate(1 / _PAUSE_S)
        burst = Burst(now_s, now_s + rng.uniform(SHORTEST_S, LONGEST_S), rng.randint(1, MOST_CORES))
        yield burst
        now_s = burst.end_s
