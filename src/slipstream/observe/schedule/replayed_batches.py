"""Measures ceilings in the script's own loop. First the loader is drained: real batches are taken in a tight loop,
without computation. Then copies of stored batches are handed out, without data loading. For every drained batch one
copy is handed out, so the number of the script's iterations does not change."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from slipstream.seams.batches import copy_batch, count_bytes, count_samples
from slipstream.seams.host_clock import Clock

_MAX_KEPT = 4
_MAX_KEPT_BYTES = 1 << 30


class BatchCache:
    """Stored batches of one iterator, and the number of batches that the script still has to get in place of drained
    ones (`credit`)."""

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
        self._caches: weakref.WeakKeyDictionary[Any, BatchCache] = weakref.WeakKeyDictionary()

    def owes(self, iterator: Any) -> bool:
        """Whether the script still has to get stored batches, or the end of the iterator, in place of real batches."""
        batch_cache = self._caches.get(iterator)
        return batch_cache is not None and (batch_cache.credit > 0 or batch_cache.is_exhausted)

    def owes_any(self) -> bool:
        return any(batch_cache.credit > 0 or batch_cache.is_exhausted for batch_cache in self._caches.values())

    def forget(self, iterator: Any) -> None:
        """Drops the stored batches at the start of an epoch. With persistent workers the same iterator serves every
        epoch, and the new epoch owes the script nothing."""
        self._caches.pop(iterator, None)

    def credit(self) -> int:
        return sum(batch_cache.credit for batch_cache in self._caches.values())

    def drain(self, iterator: Any, wanted: int, is_late: Callable[[], bool]) -> list[int]:
        """Takes up to `wanted` real batches as fast as they arrive, and returns how long each took. After three
        batches, `is_late` can end the draining."""
        batch_cache = self._caches.setdefault(iterator, BatchCache())
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
        """Returns a stored batch and its number of samples. Raises StopIteration if the real iterator has ended."""
        batch_cache = self._caches[iterator]
        if batch_cache.credit <= 0:
            raise StopIteration
        batch = batch_cache.hand_out()
        return batch, count_samples(batch)
