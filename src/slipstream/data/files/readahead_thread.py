"""A thread that asks the system to read files into the page cache before the script needs the files. It pauses while
more than a limit of bytes is requested. It ignores a missing file, because the code that reads the file reports the
error."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from slipstream.data.files.index_to_path import BatchFiles, PathOf, learn_paths

MOST_BYTES = 256 * 2**20  # maximum that is requested ahead at a time, if enough memory is available
MEMORY_SHARE = 0.1  # of the available memory
_MOST_OF_A_FILE = 32 * 2**20
_CHUNK = 2**20
_POLL_S = 1.0  # time between two checks whether the iterator still exists


def advise(path: str) -> int:
    """Asks the system to read a file into the page cache. Returns how many bytes were requested."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    with contextlib.suppress(OSError, ValueError):
        handle = os.open(path, flags)
        try:
            facts = os.fstat(handle)
            num_bytes = min(facts.st_size, _MOST_OF_A_FILE)
            if not stat.S_ISREG(facts.st_mode):
                return 0
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, num_bytes, os.POSIX_FADV_WILLNEED)
            else:
                read(handle, num_bytes)
            return num_bytes
        finally:
            os.close(handle)
    return 0


def read(handle: int, num_bytes: int) -> None:
    """Reads the bytes and drops them, for systems without `posix_fadvise`."""
    while num_bytes > 0:
        chunk = os.read(handle, min(num_bytes, _CHUNK))
        if not chunk:
            return
        num_bytes -= len(chunk)


def most_bytes() -> int:
    import psutil

    return int(min(MOST_BYTES, MEMORY_SHARE * psutil.virtual_memory().available))


class ReadaheadThread:
    """The read-ahead of one iterator. The caller announces each batch, and later tells that the batch begins. Between
    these two calls the thread requests the files of the batch."""

    def __init__(self, num_in_flight: int, budget: int) -> None:
        self.paths: list[PathOf] = []
        self._num_in_flight = num_in_flight  # batches that have begun and may still wait for their files
        self._budget = budget
        self._waiting: deque[tuple[int, list[int]]] = deque()
        self._asked: dict[int, int] = {}  # requested bytes by batch
        self._num_announced = 0
        self._num_begun = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def announce(self, indices: list[int]) -> None:
        with self._changed:
            self._waiting.append((self._num_announced, indices))
            self._num_announced += 1
            while len(self._waiting) > self._num_announced - self._num_begun + self._num_in_flight:
                self._waiting.popleft()
            self._changed.notify()

    def begin(self) -> None:
        """Tells that the earliest announced batch that has not begun is being built now."""
        with self._changed:
            self._num_begun += 1
            for batch in [batch for batch in self._asked if batch < self._num_begun - self._num_in_flight]:
                del self._asked[batch]
            self._changed.notify()

    def rewind(self) -> None:
        """Forgets announced batches that have not begun. A new epoch starts, so these batches never begin."""
        with self._changed:
            self._waiting.clear()
            self._asked.clear()
            self._num_begun = self._num_announced

    def end(self) -> None:
        """Ends the thread without taking the lock. A forked worker may destroy an inherited object of this class. If
        another thread held its lock at the time of the fork, nothing in the worker releases the lock."""
        self._is_over = True

    def start(self, dataset: Any, notes: Sequence[BatchFiles], on_paths: Callable[[list[PathOf]], None]) -> None:
        """Starts the thread. The thread learns the paths of the files if they are not known. If that succeeds, it
        requests the files."""

        def work() -> None:
            with contextlib.suppress(Exception):  # after any error, such as a list that became shorter, read-ahead ends
                self.paths = self.paths or learn_paths(dataset, notes)
                on_paths(self.paths)
                while self.paths and self._advise_next():
                    pass

        self._thread = threading.Thread(target=work, name="slipstream-read-ahead", daemon=True)
        self._thread.start()

    def _advise_next(self) -> bool:
        with self._changed:
            if not self._changed.wait_for(self._has_work, _POLL_S) or self._is_over:
                return not self._is_over
            batch, indices = self._waiting.popleft()
            if batch < self._num_begun - self._num_in_flight:
                return True  # too late
            self._asked[batch] = 0
        num_bytes = sum(advise(path(index)) for index in indices for path in self.paths)
        with self._changed:
            if batch in self._asked:
                self._asked[batch] = num_bytes
        return True

    def _has_work(self) -> bool:
        return bool(self._waiting) and sum(self._asked.values()) < self._budget

    def is_idle(self) -> bool:
        with self._changed:
            return not self._has_work() and all(self._asked.values())
