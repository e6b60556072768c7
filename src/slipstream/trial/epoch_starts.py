"""Measures the cost of starting an epoch: creating the loader's iterator and waiting for its first batch, minus a usual
wait for a batch. Loaders whose batches do not lead to an update, as in validation, do not count."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.seams.patching import Patches

_WAITS = 15  # the usual wait is the median of this number of waits


class EpochStarts:
    """`once_ns` returns the time spent so far on one-off work. This time is not part of the start of an epoch."""

    def __init__(self, once_ns: Callable[[], int] = lambda: 0) -> None:
        self._once_ns = once_ns
        self.total_ns = 0  # cost of all starts except the first, which includes one-off work
        self._num = 0
        self._first_ns: int | None = None
        self._waits_ns: deque[int] = deque(maxlen=_WAITS)
        self._fresh = (0, 0)  # the id of an iterator that was just created, and how long that took
        self._pending = (0, 0)  # the id of an iterator that returned its first batch, and how long both took

    def install(self, patches: Patches) -> None:
        patches.around(DataLoader, "__iter__", "epoch_starts.iter", self._before, self._after_iter)
        patches.around(_BaseDataLoaderIter, "__next__", "epoch_starts.next", self._before, self._after_next)

    def estimate_s(self) -> float:
        """Returns the mean cost of a start, without the first one. If there was only one start, it returns the cost of
        that start."""
        if self._num:
            return self.total_ns / self._num / 1e9
        return max(0, (self._first_ns or 0) - self._usual_ns()) / 1e9

    def confirm(self) -> None:
        """Is called at a tick. The last batch was then used for training, so a pending start counts."""
        iterator, spent_ns = self._pending
        if not iterator:
            return
        self._pending = (0, 0)
        if self._first_ns is None:
            self._first_ns = spent_ns
        else:
            self._num += 1
            self.total_ns += max(0, spent_ns - self._usual_ns())

    def _usual_ns(self) -> int:
        return int(median(self._waits_ns)) if self._waits_ns else 0

    def _now_ns(self) -> int:
        return time.perf_counter_ns() - self._once_ns()

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return self._now_ns()

    def _after_iter(self, start_ns: int, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._fresh = (id(result), self._now_ns() - start_ns)

    def _after_next(self, start_ns: int, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        iterator, wait_ns = id(args[0]), self._now_ns() - start_ns
        if iterator == self._fresh[0]:
            self._pending = (iterator, self._fresh[1] + wait_ns)
            self._fresh = (0, 0)
            return
        self._waits_ns.append(wait_ns)
        if iterator != self._pending[0]:
            self._pending = (0, 0)
