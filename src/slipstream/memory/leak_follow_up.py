"""Follows up a step that left tensors behind. Counts live tensors at intervals until they stop growing or the growth is
established. A cache fills up and stops growing; a leak does not."""

from __future__ import annotations

import gc

from slipstream.observe.leaks import MemoryGauge
from slipstream.records import Memory

NUM_LOOKS = 6
_EPOCHS = 1.25  # after this many epochs a cache of every batch is full
_MOST_STEPS = 400
_FEWEST_STEPS = 48


class LeakFollowUp:
    def __init__(self, num_batches: int | None) -> None:
        """`num_batches`: batches per epoch of the loader, if it has an end."""
        wanted = min(_MOST_STEPS, max(_FEWEST_STEPS, int(_EPOCHS * (num_batches or 0))))
        self.every = -(-wanted // (NUM_LOOKS - 1))  # steps between two counts
        self._counts: list[int] = []

    def look(self, step: int, time_ns: int) -> Memory:
        # Tensors in reference cycles are not leaked. A collection may delay this run, because its results are
        # discarded.
        gc.collect()
        gauge = MemoryGauge()
        try:
            seen = gauge.read_with_tensors(step, time_ns)
        finally:
            gauge.close()
        self._counts.append(seen.num_tensors)
        return seen

    @property
    def is_over(self) -> bool:
        """Whether counting is finished: after a fixed number of counts, or earlier if two in a row found no growth."""
        return len(self._counts) >= NUM_LOOKS or (len(self._counts) >= 3 and max(self._counts[-2:]) <= self._counts[-3])
