"""Ceilings from the script's own loop: real batches are drained in a tight loop (compute free), then fresh copies of
kept ones are handed out (data free). As many are handed out as were drained, so no iteration is ever added or lost."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from slipstream.seams.batches import copy_batch, count_bytes, count_samples
from slipstream.seams.host_clock import Clock

_MAX_KEPT = 4
_MAX_KEPT_BYTES = 1 << 30


class BatchCache:
    """Kept batches of one iterator, and how many more of them the script is owed."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.credit = 0
        self.is_exhausted = False
        self._next = 0

    def keep(self, batch: Any) -> None:
        if not self.batches or count_bytes(batch) * (len(self.batches) + 1) < _MAX_KEPT_BYTES:
            self.batches.append(batch)
            del self.batches[:-_MAX_KEPT]

    def hand_out(self) -> Any:
        self.credit -= 1
        self._next += 1
        return copy_batch(self.batches[self._next % len(self.batches)])


class ReplayedBatches:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pantries: weakref.WeakKeyDictionary[Any, BatchCache] = weakref.WeakKeyDictionary()

    def owes(self, iterator: Any) -> bool:
        batch_cache = self._pantries.get(iterator)
        return batch_cache is not None and (batch_cache.credit > 0 or batch_cache.is_exhausted)

    def owes_any(self) -> bool:
        return any(batch_cache.credit > 0 or batch_cache.is_exhausted for batch_cache in self._pantries.values())

    def forget(self, iterator: Any) -> None:
        """A new epoch: persistent workers rewind the iterator that they have, and nothing is owed from the last one."""
        self._pantries.pop(iterator, None)

    def credit(self) -> int:
        return sum(batch_cache.credit for batch_cache in self._pantries.values())

    def drain(self, iterator: Any, wanted: int, is_late: Callable[[], bool]) -> list[int]:
        """Takes up to `wanted` real batches as fast as they come; returns how long each took."""
        batch_cache = self._pantries.setdefault(iterator, BatchCache())
        times: list[int] = []
        while len(times) < wanted and not (len(times) >= 3 and is_late()):
            start = self._clock.now_ns()
            try:
                batch = next(iterator)
            except StopIteration:
                batch_cache.is_exhausted = True
                break
            times.append(self._clock.now_ns() - start)
            batch_cache.keep(batch)
        batch_cache.credit += len(times)
        return times

    def hand_out(self, iterator: Any) -> tuple[Any, int]:
        """A kept batch and its number of samples; StopIteration when the real iterator had ended."""
        batch_cache = self._pantries[iterator]
        if batch_cache.credit <= 0:
            raise StopIteration
        batch = batch_cache.hand_out()
        return batch, count_samples(batch)
