"""The pool of shared storages that a worker reuses.

The storages are torch's own and have exactly the size of a tensor's storage, so a batch in them looks like any other. A
storage is overwritten only when nothing holds it, neither in the worker nor in the main process. The main process
reports in a table of bytes in shared memory which storages it no longer holds.

`lent_storages` marks code in a worker that creates shared storages and overwrites them completely. A storage that this
code gets may be a reused one."""

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
DESCRIPTOR_SHARE = 8  # buffers use at most one in eight of the allowed open files; both processes open each buffer
SHM = "/dev/shm"
SMALL = 2**16  # bytes; a pipe carries this size well, so a buffer this small is made only for a size that occurs again
_NUM_REMEMBERED = 64  # sizes

# The states of a buffer. Only the process in brackets may change the state.
VACANT = 0  # the main process does not know the buffer [worker]
OUT = 1  # the buffer is being sent, or the script holds it [main process]
FREE = 2  # the main process maps the buffer, and nothing there holds it [worker]
RETIRED = 3  # the script shares the buffer with another process, so it is never written again [worker]
DROPPED = 4  # the worker no longer keeps the buffer [main process]

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
        self.batch = 0  # the number of the last batch that the buffer was sent with

    def is_alone(self) -> bool:
        """Whether nothing else in this process holds the storage: no tensor, view or graph, and no other reference to
        the Python object."""
        assert _use_count is not None
        # The two references are our attribute and the argument of `getrefcount`.
        return _use_count(self.ident) == 1 and sys.getrefcount(self.storage) <= 2


def holders_of(storage: Any) -> int:
    """Returns the number of tensors that use this storage. The Python object that the caller holds is not counted."""
    assert _use_count is not None
    return _use_count(storage._cdata) - 1


def why_not() -> str:
    """Returns the reason why this torch version or this system cannot reuse buffers, or "" if it can."""
    if _use_count is None:
        return "this torch version does not report how many tensors use a storage"
    processes: Any = torch.multiprocessing
    if processes.get_sharing_strategy() != "file_descriptor" or not os.path.isdir(SHM):
        return "torch shares tensors by file name here, and not by file descriptor"
    return ""


def most_buffers(num_workers: int) -> int:
    """Returns how many buffers each of `num_workers` workers may have, given the number of files that a process may
    open."""
    import resource  # not available on every system

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return NUM_STATES if allowed == resource.RLIM_INFINITY else allowed // DESCRIPTOR_SHARE // num_workers


class Pool:
    """The buffers of one worker. The pool grows with the number of batches that are in use at once, at most to the size
    that a loader of this depth needs. To make room for a new buffer, the pool drops the unused buffers that were sent
    longest ago."""

    def __init__(self, depth: int, most_buffers: int, new_shared: Callable[[int], Any]) -> None:
        self.key = (os.getpid(), os.urandom(8))
        self.states = States()
        self.thread = threading.get_ident()  # only this thread takes buffers
        self._most_batches = depth + SPARE
        self._most_buffers = min(most_buffers, NUM_STATES)
        self._new_shared = new_shared
        self._buffers: dict[int, Buffer] = {}  # by number
        self._by_ident: dict[int, Buffer] = {}
        self._by_size: dict[int, list[Buffer]] = {}
        self._abandoned: set[int] = set()  # numbers
        self._num_bytes = 0
        self._sizes: deque[int] = deque(maxlen=_NUM_REMEMBERED)  # requested by earlier batches
        self._asked: set[int] = set()  # sizes requested by the batch that is being built
        self._largest = 0  # bytes of the largest batch
        self._wanted = 0  # bytes requested by the batch that is being built
        self.batch = 0  # the number of the batch that is being built
        self.sending = 0  # the storage that is being sent for the first time
        self.is_in_service = True
        self._has_travelled = False

    def take(self, num_bytes: int) -> Buffer | None:
        """Returns a buffer that may be overwritten, or None if torch should allocate new memory."""
        self._wanted += num_bytes
        for buffer in reversed(self._by_size.get(num_bytes, ())):
            if self.states[buffer.number] in (VACANT, FREE) and buffer.is_alone():
                return buffer
        self._asked.add(num_bytes)
        return self._make(num_bytes) if num_bytes > SMALL or num_bytes in self._sizes else None

    def lend(self, num_bytes: int) -> Any:
        """Returns the storage of a buffer that may be overwritten, or None. After an error in the pool the result is
        always None, so the script is not affected."""
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
        """Whether the main process is known to have received the table of states."""
        if not self._has_travelled:
            self._has_travelled = any(self.states[number] not in (VACANT, OUT) for number in self._buffers)
        return self._has_travelled

    def close_batch(self, sent: list[Buffer]) -> None:
        for buffer in sent:
            self.states[buffer.number] = OUT
            buffer.batch = self.batch
            same = self._by_size[buffer.num_bytes]
            same.remove(buffer)
            same.append(buffer)  # the last used buffer is taken first, because it is most likely in the CPU cache
        self._largest = max(self._largest, sum(buffer.num_bytes for buffer in sent))
        self._wanted = 0
        self._sizes.extend(self._asked)
        self._asked.clear()
        self.batch += 1

    def abandon(self, buffer: Buffer) -> None:
        """Removes a buffer that other code sends to another process, or that the dataset still holds. The buffer may
        stay in use, so its number is not given to another buffer."""
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
        except RuntimeError:  # there is no space left; torch tries again and raises its own error
            return None
        self._buffers[number] = self._by_ident[buffer.ident] = buffer
        self._by_size.setdefault(num_bytes, []).append(buffer)
        self._num_bytes += num_bytes
        return buffer

    def _is_vacant(self, number: int) -> bool:
        return number not in self._buffers and number not in self._abandoned and self.states[number] == VACANT

    def _may_grow(self, num_bytes: int) -> bool:
        in_use = {buffer.batch for buffer in self._buffers.values() if self.states[buffer.number] == OUT}
        if len(in_use) >= self._most_batches:  # the script keeps its batches
            return False
        most_bytes = self._most_batches * max(self._largest, self._wanted)
        idle = sorted(self._buffers.values(), key=lambda buffer: buffer.batch)
        while idle and (self._num_bytes + num_bytes > most_bytes or len(self._buffers) >= self._most_buffers):
            self._drop(idle.pop(0))
        has_space = self._num_bytes + num_bytes <= most_bytes and len(self._buffers) < self._most_buffers
        return has_space and num_bytes <= SHM_SHARE * _free_bytes()

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
    stats = os.statvfs(SHM)
    return stats.f_bavail * stats.f_frsize


_thread = threading.local()


@contextmanager
def lent_storages() -> Iterator[None]:
    """Returns a context in which shared storages that this thread creates may be reused ones."""
    _thread.is_lending = True
    try:
        yield
    finally:
        _thread.is_lending = False


def is_lending() -> bool:
    return getattr(_thread, "is_lending", False)
