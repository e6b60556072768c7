"""Shared storages that a worker uses again, as the worker keeps them. They are torch's own, of the very size that a
tensor's storage has, so that nobody can tell a batch in them from another. One is written again only when nobody holds
it, neither here nor in the main process, which says so in a table of bytes that both see.

Says, in a worker, that a shared storage which is made now will be written all over: it may be one that was used
before. Whether there is such a one is for others to know."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from slipstream.data.workers.shm_budget import SHM_SHARE, SPARE

NUM_STATES = 1024
DESCRIPTOR_SHARE = 8  # one in so many of the files that a process may have open: each buffer is one, on both sides
SHM = "/dev/shm"
SMALL = 2**16  # bytes, which go through the pipe as well as another way: a buffer only for sizes that come again
_NUM_REMEMBERED = 64  # sizes

# Who may change a state is said in brackets: nobody ever changes one that is the other's to change.
VACANT = 0  # the main process does not know it [worker]
OUT = 1  # on its way, or in the script's hands [main process]
FREE = 2  # the main process keeps it mapped and nobody there holds it [worker]
RETIRED = 3  # given away by the script: never to be written again [worker]
DROPPED = 4  # the worker keeps it no longer [main process]

_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class States:
    """One byte for each buffer, in shared memory."""

    def __init__(self, storage: Any = None) -> None:
        kind: Any = torch.UntypedStorage
        self.storage = storage if storage is not None else kind._new_shared(NUM_STATES)
        self._bytes = (ctypes.c_uint8 * NUM_STATES).from_address(self.storage.data_ptr())

    def __getitem__(self, number: int) -> int:
        return self._bytes[number]

    def __setitem__(self, number: int, state: int) -> None:
        self._bytes[number] = state


class Buffer:
    def __init__(self, number: int, storage: Any) -> None:
        self.number = number
        self.storage = storage
        self.ident: int = storage._cdata
        self.num_bytes: int = storage.nbytes()
        self.batch = 0  # the one that it was last sent with

    def is_alone(self) -> bool:
        """Nobody in this process holds it but us: no tensor, no view, no graph; nor the Python object."""
        assert _use_count is not None
        return _use_count(self.ident) == 1 and sys.getrefcount(self.storage) <= 2  # our attribute, and the question


def holders_of(storage: Any) -> int:
    """Tensors over this storage, besides the Python object that asks."""
    assert _use_count is not None
    return _use_count(storage._cdata) - 1


def why_not() -> str:
    """What this torch or this system lacks; "" if nothing."""
    if _use_count is None:
        return "this torch does not say who holds a storage"
    processes: Any = torch.multiprocessing
    if processes.get_sharing_strategy() != "file_descriptor" or not os.path.isdir(SHM):
        return "tensors travel by file name here, not by descriptor"
    return ""


def most_buffers(num_workers: int) -> int:
    """Of one worker of so many, by the number of files that a process may have open."""
    import resource  # not on every system, as what comes before it is not

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return NUM_STATES if allowed == resource.RLIM_INFINITY else allowed // DESCRIPTOR_SHARE // num_workers


class Pool:
    """Of one worker. Grows as batches are on their way at once, to what a loader of this depth needs and no further;
    sizes that come no more make room for those that do."""

    def __init__(self, depth: int, most_buffers: int, new_shared: Callable[[int], Any]) -> None:
        self.key = (os.getpid(), os.urandom(8))
        self.states = States()
        self.thread = threading.get_ident()  # nobody else takes buffers
        self._most_batches = depth + SPARE
        self._most_buffers = min(most_buffers, NUM_STATES)
        self._new_shared = new_shared
        self._buffers: dict[int, Buffer] = {}  # by number
        self._by_ident: dict[int, Buffer] = {}
        self._by_size: dict[int, list[Buffer]] = {}
        self._abandoned: set[int] = set()  # numbers
        self._num_bytes = 0
        self._sizes: deque[int] = deque(maxlen=_NUM_REMEMBERED)  # that earlier batches asked for
        self._asked: set[int] = set()  # sizes, by the batch that is being built
        self._largest = 0  # batch
        self._wanted = 0  # bytes, for the batch that is being built
        self.batch = 0  # its number
        self.sending = 0  # the storage that is being sent our way
        self.is_in_service = True
        self._has_travelled = False

    def take(self, num_bytes: int) -> Buffer | None:
        """A buffer that may be written; None where torch had better make fresh memory."""
        self._wanted += num_bytes
        for buffer in reversed(self._by_size.get(num_bytes, ())):
            if self.states[buffer.number] in (VACANT, FREE) and buffer.is_alone():
                return buffer
        self._asked.add(num_bytes)
        return self._make(num_bytes) if num_bytes > SMALL or num_bytes in self._sizes else None

    def lend(self, num_bytes: int) -> Any:
        """The storage of such a buffer. A fault of ours is not the script's: then there are no more."""
        try:
            is_here = self.is_in_service and threading.get_ident() == self.thread
            buffer = self.take(num_bytes) if is_here else None
        except Exception:
            self.is_in_service = False
            return None
        return buffer.storage if buffer is not None else None

    def owner(self, storage: Any) -> Buffer | None:
        return self._by_ident.get(storage._cdata)

    def has_travelled(self) -> bool:
        """Whether the main process is known to have the table."""
        if not self._has_travelled:
            self._has_travelled = any(self.states[number] not in (VACANT, OUT) for number in self._buffers)
        return self._has_travelled

    def close_batch(self, sent: list[Buffer]) -> None:
        for buffer in sent:
            self.states[buffer.number] = OUT
            buffer.batch = self.batch
            same = self._by_size[buffer.num_bytes]
            same.remove(buffer)
            same.append(buffer)  # the one used last is the likeliest to be in a cache
        self._largest = max(self._largest, sum(buffer.num_bytes for buffer in sent))
        self._wanted = 0
        self._sizes.extend(self._asked)
        self._asked.clear()
        self.batch += 1

    def abandon(self, buffer: Buffer) -> None:
        """It goes another way than ours: whoever gets it may keep it, and its number is not used again."""
        self._abandoned.add(buffer.number)
        self._forget(buffer)

    # --- growing and shrinking ---------------------------------------------------------------------------------------

    def _make(self, num_bytes: int) -> Buffer | None:
        self._collect_retired()
        if not self._may_grow(num_bytes):
            return None
        number = next((n for n in range(NUM_STATES) if self._is_vacant(n)), None)
        if number is None:
            return None
        try:
            buffer = Buffer(number, self._new_shared(num_bytes))
        except RuntimeError:  # no room after all: torch tries once more and fails in its own words
            return None
        self._buffers[number] = self._by_ident[buffer.ident] = buffer
        self._by_size.setdefault(num_bytes, []).append(buffer)
        self._num_bytes += num_bytes
        return buffer

    def _is_vacant(self, number: int) -> bool:
        return number not in self._buffers and number not in self._abandoned and self.states[number] == VACANT

    def _may_grow(self, num_bytes: int) -> bool:
        under_way = {buffer.batch for buffer in self._buffers.values() if self.states[buffer.number] == OUT}
        if len(under_way) >= self._most_batches:  # the script keeps its batches
            return False
        most_bytes = self._most_batches * max(self._largest, self._wanted)
        idle = sorted(self._buffers.values(), key=lambda buffer: buffer.batch)
        while idle and (self._num_bytes + num_bytes > most_bytes or len(self._buffers) >= self._most_buffers):
            self._drop(idle.pop(0))
        has_place = self._num_bytes + num_bytes <= most_bytes and len(self._buffers) < self._most_buffers
        return has_place and num_bytes <= SHM_SHARE * _free_bytes()

    def _drop(self, buffer: Buffer) -> None:
        state = self.states[buffer.number]
        if state not in (VACANT, FREE) or not buffer.is_alone():
            return
        self._forget(buffer)
        if state == FREE:
            self.states[buffer.number] = DROPPED

    def _collect_retired(self) -> None:
        for buffer in list(self._buffers.values()):
            if self.states[buffer.number] == RETIRED:
                self._forget(buffer)
                self.states[buffer.number] = VACANT

    def _forget(self, buffer: Buffer) -> None:
        del self._buffers[buffer.number], self._by_ident[buffer.ident]
        self._by_size[buffer.num_bytes].remove(buffer)
        if not self._by_size[buffer.num_bytes]:
            del self._by_size[buffer.num_bytes]
        self._num_bytes -= buffer.num_bytes


def _free_bytes() -> int:
    room = os.statvfs(SHM)
    return room.f_bavail * room.f_frsize


_thread = threading.local()


@contextmanager
def lent_storages() -> Iterator[None]:
    _thread.is_lending = True
    try:
        yield
    finally:
        _thread.is_lending = False


def is_lending() -> bool:
    return getattr(_thread, "is_lending", False)
