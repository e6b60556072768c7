"""Packed samples in one piece of memory that this process and its forked workers share. Nothing is ever taken out again
but all at once, and then each process gives the memory back as soon as it hears of it. A process that dies while it
writes leaves room unused and nothing else."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from slipstream.data.samples.serialise import SamplePayload, read_payload, unpack
from slipstream.machine.free_memory import free_bytes, total_bytes

_HEAD_BYTES = 4096
_REASON_AT, _REASON_BYTES = 64, 512
_USED, _COUNT, _IS_DROPPED, _CHECKED = range(4)  # numbers in the head
_LOOK_BYTES = 64 << 20  # written between two looks at what memory is left
_LEAST_LEFT = 0.1  # of the machine's memory: below that nothing more is kept


class ArenaEntry(NamedTuple):
    at: int
    num_bytes: int
    writer: int  # of which worker; -1: the script's own process


class SharedArena:
    def __init__(self, num_samples: int, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        table_bytes = num_samples * 3 * 8
        self._start = _HEAD_BYTES + table_bytes + (-table_bytes % _HEAD_BYTES)
        self._file: Any = _open()
        os.ftruncate(self._file.fileno(), self._start + most_bytes)  # takes no memory until it is written to
        self._memory: Any = mmap.mmap(self._file.fileno(), self._start + most_bytes)
        self._head: Any = np.frombuffer(self._memory, np.int64, 8)
        self._table: Any = np.frombuffer(self._memory, np.int64, num_samples * 3, _HEAD_BYTES).reshape(-1, 3)
        self._lock = (os.getpid(), threading.Lock())
        self._num_samples = num_samples
        self._last_word = ""  # the reason, once the memory is given back

    def __len__(self) -> int:
        return int(self._head[_COUNT])

    def __contains__(self, index: int) -> bool:
        return 0 <= index < self._num_samples

    @property
    def reason(self) -> str:
        """Why all was dropped, in whatever process; "" as long as it was not."""
        if self._last_word or not self._head[_IS_DROPPED]:
            return self._last_word
        text: bytes = self._memory[_REASON_AT : _REASON_AT + _REASON_BYTES]
        return text.rstrip(b"\0").decode(errors="replace")

    def drop(self, reason: str) -> None:
        if self._last_word:
            return
        with self._alone():
            if not self._head[_IS_DROPPED]:
                text = reason.encode()[:_REASON_BYTES]
                self._memory[_REASON_AT : _REASON_AT + len(text)] = text
                self._head[_IS_DROPPED] = 1

    def let_go(self) -> None:
        """Of what was dropped, in this process. Only its reason can be asked for from then on."""
        self._last_word = self.reason or "it is not used any more"
        self._head = self._table = self._memory = self._file = None

    def entry(self, index: int) -> ArenaEntry | None:
        at, num_bytes, writer = self._table[index].tolist()
        return ArenaEntry(at, num_bytes, writer) if at else None

    def put(self, index: int, payload: SamplePayload, writer: int) -> bool:
        """Whether there was room. Found by others only when all of it is written."""
        data = payload.to_bytes()
        at = self._reserve(len(data))
        if not at:
            return False
        self._memory[at : at + len(data)] = data
        with self._alone():  # and whoever sees the entry sees what was written before
            if not self._table[index, 0]:
                self._table[index, 1:] = len(data), writer
                self._table[index, 0] = at
                self._head[_COUNT] += 1
        return True

    def sample(self, entry: ArenaEntry) -> Any:
        return unpack(self._memory, entry.at)

    def payload(self, entry: ArenaEntry) -> SamplePayload:
        return read_payload(self._memory, entry.at)

    def _reserve(self, num_bytes: int) -> int:
        """Where to write, or 0."""
        num_bytes += -num_bytes % 64
        with self._alone():
            used, checked = int(self._head[_USED]), int(self._head[_CHECKED])
            if used + num_bytes > self.most_bytes:
                return 0
            if used >= checked:
                if free_bytes() < _LEAST_LEFT * total_bytes():
                    return 0
                self._head[_CHECKED] = used + _LOOK_BYTES
            self._head[_USED] = used + num_bytes
            return self._start + used

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Among processes by a lock that ends with its holder, among threads by one that a fork makes anew."""
        if self._lock[0] != os.getpid():
            self._lock = (os.getpid(), threading.Lock())
        with self._lock[1]:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)


def _open() -> Any:
    """Without a name, gone with the last process that holds it; /dev/shm does not limit it."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("slipstream-samples"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
