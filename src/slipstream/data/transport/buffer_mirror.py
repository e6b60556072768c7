"""The main process's side of the buffers that its workers reuse. It keeps each buffer mapped, hands the buffer out as
the storage of a batch, and detects when the script no longer holds it. A buffer that the script shares with another
process, or that a forked child inherits, is never reused."""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
from collections.abc import Callable, Collection
from typing import Any

import torch

from slipstream.data.transport.buffer_pool import DROPPED, FREE, RETIRED, VACANT, Buffer, States

Key = tuple[int, bytes]  # the worker's process id, and random bytes that distinguish its pools


class BufferMirror:
    """The buffers of one worker's pool."""

    def __init__(self, states: Any) -> None:
        self.states = States(states)
        self._buffers: dict[int, Buffer] = {}
        self._out: set[int] = set()

    def adopt(self, number: int, storage: Any) -> None:
        self._buffers[number] = Buffer(number, storage)
        self._out.add(number)

    def hand_out(self, number: int) -> Any:
        self._out.add(number)
        return self._buffers[number].storage

    def look(self) -> None:
        """Marks the buffers that the script no longer holds as free, so that the worker may reuse them. Unmaps the
        buffers that the worker has dropped."""
        for number in list(self._out):
            if self._buffers[number].is_alone():
                self._out.discard(number)
                self.states[number] = FREE
        for number in [n for n in self._buffers if n not in self._out and self.states[n] == DROPPED]:
            del self._buffers[number]
            self.states[number] = VACANT

    def retire(self, ident: int | None = None) -> None:
        """Marks the buffers that the script holds, so that they are never reused. With `ident`, only the buffer with
        this storage is marked."""
        for number in list(self._out):
            if ident in (None, self._buffers[number].ident):
                self._out.discard(number)
                del self._buffers[number]
                self.states[number] = RETIRED


class BufferMirrors:
    """All mirrors of this process. Batches may arrive in the script's thread and in the thread that pins memory."""

    def __init__(self) -> None:
        # The lock is reentrant, because garbage collection may destroy an iterator while the lock is held. Its
        # finalizer calls `forget`.
        self._lock = threading.RLock()
        self._by_key: dict[Key, BufferMirror] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def receive(self, key: Key | None, states: Any) -> bool:
        """Prepares for a message from a pool. `key` is None if the message has no buffer. Returns False if the pool is
        unknown because its iterator no longer exists."""
        with self._lock:
            if key is not None and states is not None and key not in self._by_key:
                self._by_key[key] = BufferMirror(states)
            for mirror in list(self._by_key.values()):
                mirror.look()
            return key is None or key in self._by_key

    def adopt(self, key: Key, number: int, storage: Any) -> None:
        with self._lock:
            self._by_key[key].adopt(number, storage)

    def hand_out(self, key: Key, number: int) -> Any:
        with self._lock:
            return self._by_key[key].hand_out(number)

    def retire(self, ident: int | None = None) -> None:
        with self._lock:
            for mirror in list(self._by_key.values()):
                mirror.look()
                mirror.retire(ident)

    def forget(self, processes: Collection[int]) -> None:
        """Forgets the pools of these worker processes, which have ended. Batches that the script still holds stay
        valid."""
        with self._lock:
            for key in [key for key in list(self._by_key) if key[0] in processes]:
                del self._by_key[key]

    def reset(self) -> None:
        """Starts again in a forked child. The child has no mirrors, because it has no workers yet. It needs a new lock,
        because a thread that does not exist in the child may have held the old lock."""
        self._lock = threading.RLock()
        self._by_key = {}


MIRRORS = BufferMirrors()
os.register_at_fork(before=MIRRORS.retire, after_in_child=MIRRORS.reset)


# --- called by the unpickler, under these names ----------------------------------------------------------------------


def open_payload(key: Key | None, states: Any, payload: bytes) -> Any:
    if not MIRRORS.receive(key, states):
        return None, None  # the iterator no longer exists; torch sends this message too when it ends an iterator
    return pickle.loads(payload)


def adopt(key: Key, number: int, rebuild: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Receives a buffer that is sent for the first time. It is sent in torch's own way."""
    storage = rebuild(*args)
    MIRRORS.adopt(key, number, storage)
    return storage


def new_shared_storage(contents: bytes) -> Any:
    """Rebuilds a small storage that came through the pipe. It gets its own shared memory, as in torch's own
    transport."""
    kind: Any = torch.UntypedStorage
    storage = kind._new_shared(len(contents))
    ctypes.memmove(storage.data_ptr(), contents, len(contents))
    return storage


def hand_out(key: Key, number: int) -> Any:
    return MIRRORS.hand_out(key, number)
