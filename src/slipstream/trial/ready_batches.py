"""Batches that a loader's workers or threads have finished and that the script has not taken yet.

The first steps of a script are slow, so workers finish batches ahead. Afterwards a step that takes less time than a
batch runs without waiting until these batches are used up. A race that timed these steps would show a gain that the
rest of the training does not have."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

# Steps in which the number of ready batches must not fall. While a step takes less time than a batch, the number falls
# by one in a few steps. More steps would make every start longer.
_LEVEL_STEPS = 4


class ReadyBatches:
    """If no more batches may be built ahead than the warm-up has steps, the warm-up has used them up."""

    def __init__(self, num_warm: int) -> None:
        self._num_warm = num_warm  # steps of the warm-up
        self._iterator: weakref.ref[Any] | None = None
        self._num_ready: list[int] = []  # after each step since the end of the warm-up

    def see(self, iterator: Any) -> None:
        """Is called with the iterator that has just returned a batch."""
        if self._iterator is None or self._iterator() is not iterator:
            self._iterator = weakref.ref(iterator)

    def is_used_up(self) -> bool:
        """Is called after each step from the end of the warm-up on. Returns whether the ready batches no longer make
        steps shorter: there are hardly any, or their number does not fall."""
        ready, num_workers, most = count(self._iterator() if self._iterator is not None else None)
        self._num_ready.append(ready)
        if ready <= num_workers or most <= self._num_warm:
            return True
        return len(self._num_ready) > _LEVEL_STEPS and ready >= self._num_ready[-1 - _LEVEL_STEPS]


def count(iterator: Any) -> tuple[int, int, int]:
    """Returns the number of ready batches, the number of workers or threads, and the most batches that these may build
    ahead. Without workers and threads, all are 0."""
    if hasattr(iterator, "num_ready"):  # batches are built by threads
        return iterator.num_ready(), iterator.num_threads, iterator.depth
    with contextlib.suppress(AttributeError, NotImplementedError, OSError):
        queues = {id(one): one for one in (iterator._data_queue, iterator._worker_result_queue)}
        waiting = sum(one.qsize() for one in queues.values())
        # A batch that arrived before its turn is kept beside the number of its worker.
        kept = sum(len(task) == 2 for task in iterator._task_info.values())
        return waiting + kept, iterator._num_workers, iterator._num_workers * (iterator._prefetch_factor or 0)
    return 0, 0, 0
