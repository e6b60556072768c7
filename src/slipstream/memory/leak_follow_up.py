"""After a step that left something behind: live tensors counted from time to time, until they grow no more or it is
clear that they do. A cache fills and stops, a leak goes on."""

from __future__ import annotations

import gc

from slipstream.observe.leaks import MemoryGauge
from slipstream.records import Memory

NUM_LOOKS = 6
_EPOCHS = 1.25  # what is kept for every batch of the data is all there then
_MOST_STEPS = 400
_FEWEST_STEPS = 48


class LeakFollowUp:
    def __init__(self, num_batches: int | None) -> None:
        """`num_batches`: of the loader's epoch, if it has an end."""
        wanted = min(_MOST_STEPS, max(_FEWEST_STEPS, int(_EPOCHS * (num_batches or 0))))
        self.every = -(-wanted // (NUM_LOOKS - 1))  # steps between two looks
        self._counts: list[int] = []

    def look(self, step: int, time_ns: int) -> Memory:
        gc.collect()  # what waits in cycles is not kept: this ride is thrown away, and may be held up
        gauge = MemoryGauge()
        try:
            seen = gauge.read_with_tensors(step, time_ns)
        finally:
            gauge.close()
        self._counts.append(seen.num_tensors)
        return seen

    @property
    def is_over(self) -> bool:
        """At the latest after so many looks; sooner where two in a row found no more than the one before."""
        return len(self._counts) >= NUM_LOOKS or (len(self._counts) >= 3 and max(self._counts[-2:]) <= self._counts[-3])
