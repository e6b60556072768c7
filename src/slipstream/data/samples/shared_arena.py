"""Serialised samples in memory that this process and its forked workers share.

Single samples are never removed. Any process can drop the whole arena. Each process releases the memory as soon as it
notices the drop. If a process dies while it writes, some bytes stay unused, and nothing else is affected."""

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
_USED, _COUNT, _IS_DROPPED, _CHECKED = range(4)  # positions of the numbers in the head
_CHECK_BYTES = 64 << 20  # number of bytes written between two checks of the free memory
_LEAST_LEFT = 0.1  # share of the machine's memory; if less is free, nothing more is cached


class ArenaEntry(NamedTuple):
    at: int
    num_bytes: int
    writer: int  # the number of the worker; -1: the script's own process


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
        self._released_reason = ""  # the reason of the drop, once this process has released the memory

    def __len__(self) -> int:
        return int(self._head[_COUNT])

    def __contains__(self, index: int) -> bool:
        return 0 <= index < self._num_samples

    @property
    def reason(self) -> str:
        """Why a process dropped the arena, or "" if it is not dropped."""
        if self._released_reason or not self._head[_IS_DROPPED]:
            return self._released_reason
        text: bytes = self._memory[_REASON_AT : _REASON_AT + _REASON_BYTES]
        return text.rstrip(b"\0").decode(errors="replace")

    def drop(self, reason: str) -> None:
        if self._released_reason:
            return
        with self._locked():
            if not self._head[_IS_DROPPED]:
                text = reason.encode()[:_REASON_BYTES]
                self._memory[_REASON_AT : _REASON_AT + len(text)] = text
                self._head[_IS_DROPPED] = 1

    def release(self) -> None:
        """Releases the memory of a dropped arena in this process. Afterwards only `reason` can be used."""
        self._released_reason = self.reason or "it is no longer used"
        self._head = self._table = self._memory = self._file = None

    def entry(self, index: int) -> ArenaEntry | None:
        at, num_bytes, writer = self._table[index].tolist()
        return ArenaEntry(at, num_bytes, writer) if at else None

    def put(self, index: int, payload: SamplePayload, writer: int) -> bool:
        """Adds a sample. Returns whether there was space. Other processes find the sample only when it is completely
        written."""
        data = payload.to_bytes()
        at = self._reserve(len(data))
        if not at:
            return False
        self._memory[at : at + len(data)] = data
        with self._locked():  # the lock also ensures that a process that sees the entry sees the bytes written before
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
        """Returns the offset to write at, or 0 if there is no space."""
        num_bytes += -num_bytes % 64
        with self._locked():
            used, checked = int(self._head[_USED]), int(self._head[_CHECKED])
            if used + num_bytes > self.most_bytes:
                return 0
            if used >= checked:
                if free_bytes() < _LEAST_LEFT * total_bytes():
                    return 0
                self._head[_CHECKED] = used + _CHECK_BYTES
            self._head[_USED] = used + num_bytes
            return self._start + used

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Returns a context that excludes other processes and threads. A file lock excludes processes, and is released
        if its holder dies. A thread lock excludes threads, and is created again after a fork."""
        if self._lock[0] != os.getpid():
            self._lock = (os.getpid(), threading.Lock())
        with self._lock[1]:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)


def _open() -> Any:
    """Returns an unnamed file that disappears with the last process that holds it. The size of /dev/shm does not limit
    the file."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("slipstream-samples"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
