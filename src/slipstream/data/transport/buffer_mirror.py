"""The main process's side of the buffers that its workers use again: keeps each mapped, hands it out as the storage of
a batch, and notices when the script has let go of it. One that the script gives to another process, or that a forked
child inherits, is never used again."""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
from collections.abc import Callable, Collection
from typing import Any

import torch

from slipstream.data.transport.buffer_pool import DROPPED, FREE, RETIRED, VACANT, Buffer, States

Key = tuple[int, bytes]  # the worker's process, and what tells its pools apart


class BufferMirror:
    """Of one worker's pool."""

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
        """What the script holds no longer is the worker's again; what the worker dropped is unmapped."""
        for number in list(self._out):
            if self._buffers[number].is_alone():
                self._out.discard(number)
                self.states[number] = FREE
        for number in [n for n in self._buffers if n not in self._out and self.states[n] == DROPPED]:
            del self._buffers[number]
            self.states[number] = VACANT

    def retire(self, ident: int | None = None) -> None:
        """All that is in the script's hands, or the one storage that was given away."""
        for number in list(self._out):
            if ident in (None, self._buffers[number].ident):
                self._out.discard(number)
                del self._buffers[number]
                self.states[number] = RETIRED


class BufferMirrors:
    """Of this process. Batches may arrive in the script's thread and in the one that pins memory."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a collection of garbage inside may end an iterator, which calls `forget`
        self._by_key: dict[Key, BufferMirror] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def receive(self, key: Key | None, states: Any) -> bool:
        """Whether this pool is known: one whose iterator is gone is not. None where no buffer came."""
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
        """Their workers are gone. Batches that the script still holds stay its own."""
        with self._lock:
            for key in [key for key in list(self._by_key) if key[0] in processes]:
                del self._by_key[key]

    def begin_anew(self) -> None:
        """In a forked child, which is nobody's main process yet; a thread that it lacks may have held the lock."""
        self._lock = threading.RLock()
        self._by_key = {}


MIRRORS = BufferMirrors()
os.register_at_fork(before=MIRRORS.retire, after_in_child=MIRRORS.begin_anew)


# --- what a parcel is made of: called by the unpickler, under these names --------------------------------------------


def open_payload(key: Key | None, states: Any, payload: bytes) -> Any:
    if not MIRRORS.receive(key, states):
        return None, None  # the iterator is gone; torch says the same when it ends one
    return pickle.loads(payload)


def adopt(key: Key, number: int, rebuild: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A buffer that comes for the first time, the way that torch sends a storage."""
    storage = rebuild(*args)
    MIRRORS.adopt(key, number, storage)
    return storage


def share_anew(contents: bytes) -> Any:
    """A small storage that came through the pipe, as torch would have brought it: in shared memory of its own."""
    kind: Any = torch.UntypedStorage
    storage = kind._new_shared(len(contents))
    ctypes.memmove(storage.data_ptr(), contents, len(contents))
    return storage


def hand_out(key: Key, number: int) -> Any:
    return MIRRORS.hand_out(key, number)
