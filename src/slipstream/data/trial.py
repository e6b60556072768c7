"""Whether a loader's consumer waits for it, and whether workers end that: counted over a few batches of each, decided
after a number of batches that is always the same. Knows no loader and no clock."""

from __future__ import annotations

import math
from statistics import median
from typing import Literal

import msgspec

How = Literal["plain", "gather", "workers", "undecided"]
LOOKED_AT = 8  # batches, after the first two
SETTLING = 2
LEAST_SHARE = 0.1  # of a trip round the loop that is waiting: below that workers have nothing to give
LEAST_LEFT = 4  # batches for each worker: starting one takes as long as building a few
BETTER = 0.95  # of the plain trip: workers that are not this quick are sent away


class LoaderChoice(msgspec.Struct, frozen=True):
    how: How
    num_workers: int = 0
    reason: str = ""
    load_ms: float = 0.0  # a batch, built in the script's process
    step_ms: float = 0.0  # what the script did between two batches


class Trial:
    def __init__(self, refusal: str, num_cores: int) -> None:
        self._num_cores = num_cores
        self._loads: list[float] = []
        self._steps: list[float] = []
        self._trips: list[float] = []  # with workers
        self._plain_s = math.inf
        self.choice = LoaderChoice("plain" if refusal else "undecided", 0, refusal)

    @property
    def is_open(self) -> bool:
        return self.choice.how == "undecided"

    def close(self, how: How, num_workers: int, reason: str) -> None:
        self.choice = LoaderChoice(how, num_workers, reason, self.choice.load_ms, self.choice.step_ms)

    def wants_workers(self, num_left: int) -> bool:
        return self.choice.how == "workers" and num_left >= LEAST_LEFT * self.choice.num_workers

    def note(self, load_s: float, step_s: float, has_workers: bool) -> bool:
        """One batch: how long it took, and what passed since the one before (NaN: there was none). True: the choice is
        another now."""
        if math.isnan(step_s):
            return False
        if has_workers:
            return self._note_trip(load_s + step_s)
        if not self.is_open:
            return False
        self._loads.append(load_s)
        self._steps.append(step_s)
        return len(self._loads) == SETTLING + LOOKED_AT and self._decide()

    def _decide(self) -> bool:
        load_s, step_s = median(self._loads[SETTLING:]), median(self._steps[SETTLING:])
        self._plain_s = load_s + step_s
        count, reason = num_wanted(load_s, step_s, self._num_cores)
        self.choice = LoaderChoice("workers" if count else "plain", count, reason, load_s * 1e3, step_s * 1e3)
        return True

    def _note_trip(self, trip_s: float) -> bool:
        """The first batches come out of full buffers, or wait for processes to start."""
        self._trips.append(trip_s)
        settling = 4 * self.choice.num_workers
        if self.choice.how != "workers" or len(self._trips) != settling + 2 * LOOKED_AT:
            return False
        mean_s = sum(self._trips[settling:]) / (2 * LOOKED_AT)
        if mean_s <= BETTER * self._plain_s:
            return False
        reason = (
            f"workers gave a batch every {mean_s * 1e3:.3g} ms, and without them it was {self._plain_s * 1e3:.3g} ms"
        )
        self.close("plain", 0, reason)
        return True


def num_wanted(load_s: float, step_s: float, num_cores: int) -> tuple[int, str]:
    """As many as hide the load behind the step, within the cores; and why."""
    share = load_s / (load_s + step_s) if load_s + step_s > 0 else 0.0
    told = f"a batch takes {load_s * 1e3:.3g} ms and the step {step_s * 1e3:.3g} ms"
    if share < LEAST_SHARE:
        return 0, told
    needed = math.ceil(load_s / step_s) if step_s > 0 else num_cores
    return max(1, min(needed, num_cores)), told
