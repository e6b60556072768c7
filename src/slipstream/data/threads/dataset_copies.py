"""Makes a copy of a dataset for each thread. The copies are made with pickle, as for a spawned worker process, but
within this process. Large arrays, long strings and large containers of plain values are shared, and so are classes,
functions, loggers, locks and queues. Most other objects are copied. A dataset that cannot be copied, such as one with
an open file or a connection, is refused."""

from __future__ import annotations

import io
import logging
import pickle
import sys
from types import FunctionType, ModuleType
from typing import Any

import torch

_SMALL = 2**20  # bytes; an array up to this size may be scratch space and is copied
_MOST_ARRAYS = 256  # number of arrays that are examined; further arrays count as data
_MANY = 1000  # elements; a longer container of plain values counts as data
_LONG = 4096  # characters; a longer string is shared
_MOST_OBJECTS = 300_000  # maximum number of examined objects, which takes half a second
_MOST_BYTES = 64 * 2**20
_SEEN = 16  # elements of a large container that are examined instead of all
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_GUARDS = ("_thread", "threading", "queue", "_queue", "multiprocessing")  # locks and queues, which are made for sharing
_SHARED_TYPES = (type, FunctionType, ModuleType, logging.Logger, logging.Handler)


class UncopyableError(ValueError):
    """The dataset cannot be copied. The message is the reason, as a clause."""


def duplicate(thing: Any, count: int) -> list[Any]:
    """Returns `count` copies of `thing`. Raises UncopyableError if it cannot be copied."""
    sink = _Sink()
    writer = _Writer(sink)
    try:
        writer.dump(thing)
        data = sink.getvalue()
        return [_Reader(io.BytesIO(data), writer).load() for _ in range(count)]
    except UncopyableError:
        raise
    except Exception as fault:  # the user's __getstate__ may raise anything
        raise UncopyableError(f"it cannot be copied for each thread ({fault})") from fault


class _Sink(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _MOST_BYTES:
            raise UncopyableError("it is too large to be copied for each thread")
        return super().write(data)


class _Writer(pickle.Pickler):
    def __init__(self, sink: io.BytesIO) -> None:
        super().__init__(sink, protocol=5, buffer_callback=self._keep)
        self.shared: list[Any] = []
        self.buffers: list[pickle.PickleBuffer] = []
        self._num_arrays = self._num_objects = 0

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Shares large buffers (Arrow, NumPy). Returns True if pickle is to write the buffer out, which copies it."""
        if buffer.raw().nbytes <= _SMALL:
            return True
        self.buffers.append(buffer)
        return False

    def persistent_id(self, thing: Any) -> int | None:
        self._num_objects += 1
        if self._num_objects > _MOST_OBJECTS:
            raise UncopyableError("it holds too many objects to be copied for each thread")
        if not self._is_shared(thing):
            return None
        self.shared.append(thing)
        return len(self.shared) - 1

    def _is_shared(self, thing: Any) -> bool:
        kind = type(thing)
        if kind in (str, bytes):
            return len(thing) > _LONG
        if kind in _PLAIN:
            return False
        if kind in (list, tuple, dict, set, frozenset):
            return len(thing) > _MANY and _is_data(thing)
        if isinstance(thing, _SHARED_TYPES) or kind is object:  # a bare object() is a sentinel, compared by identity
            return True
        num_bytes = _array_bytes(thing)
        if num_bytes is not None:
            self._num_arrays += 1
            return num_bytes > _SMALL or self._num_arrays > _MOST_ARRAYS
        return kind.__module__.partition(".")[0] in _GUARDS or thing in _STREAMS or _is_loaded_image(thing)


class _Reader(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, writer: _Writer) -> None:
        super().__init__(source, buffers=writer.buffers)
        self._shared = writer.shared

    def persistent_load(self, ident: int) -> Any:
        return self._shared[ident]


class _Streams:
    """The standard streams of the process. They are compared by identity, because the `==` of a user's object may do
    anything."""

    def __contains__(self, thing: Any) -> bool:
        return any(thing is stream for stream in (sys.stdin, sys.stdout, sys.stderr))


_STREAMS = _Streams()


def _is_data(container: Any) -> bool:
    """Whether the container holds only plain values, or lists, tuples and dictionaries of plain values, as from a JSON
    file. Only its first elements are examined."""
    values = list(container.values()) if isinstance(container, dict) else container
    return all(_is_record(value, 3) for value, _ in zip(values, range(_SEEN), strict=False))


def _is_record(value: Any, depth: int) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if depth == 0 or type(value) not in (list, tuple, dict):
        return False
    values = value.values() if type(value) is dict else value
    return all(_is_record(part, depth - 1) for part, _ in zip(values, range(_SEEN), strict=False))


def _array_bytes(thing: Any) -> int | None:
    """Returns the size of an array, or None if `thing` is not an array. A memory-mapped file and memory on a device
    always count as large."""
    numpy: Any = sys.modules.get("numpy")
    if isinstance(thing, torch.Tensor):
        whole: Any = thing
        is_bound = whole.device.type != "cpu" or whole.requires_grad or whole.is_shared()
        return _SMALL + 1 if is_bound else thing.numel() * thing.element_size()
    if numpy is not None and isinstance(thing, numpy.ndarray):
        return _SMALL + 1 if isinstance(thing, numpy.memmap) else int(thing.nbytes)
    return None


def _is_loaded_image(thing: Any) -> bool:
    """Whether `thing` is a Pillow image whose pixels are in memory. Reading such an image does not change it, unlike an
    image that still reads its file."""
    image: Any = sys.modules.get("PIL.Image")
    return image is not None and isinstance(thing, image.Image) and getattr(thing, "fp", None) is None
