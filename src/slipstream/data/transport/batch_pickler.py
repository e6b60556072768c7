"""Pickles a batch in a worker so that its contents are sent in reused shared buffers.

For a tensor in a buffer that the main process knows, the message holds only the number of the buffer. Small tensors
without a buffer are written into the message. Only tensors that nothing but the batch holds are sent in these two ways.
A tensor that the dataset also holds is sent in torch's own way.

Large NumPy arrays are sent in shared buffers too. The main process rebuilds them exactly as the unpickler does. NumPy
is not imported at the top of this module: if there is an array, NumPy is already imported."""

from __future__ import annotations

import ctypes
import io
import math
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from slipstream.data.transport.buffer_mirror import adopt, hand_out, new_shared_storage, open_payload
from slipstream.data.transport.buffer_pool import FREE, SMALL, VACANT, Buffer, Pool, holders_of

_LARGE = 2**16  # bytes; this is the capacity of a pipe
_NUMBERS = "biufc"


def is_large_array(thing: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or type(thing) is not numpy.ndarray or thing.nbytes < _LARGE:
        return False
    return thing.dtype.kind in _NUMBERS and bool(thing.dtype.isnative)


def order_of(array: Any) -> str:
    return "F" if array.flags.fnc else "C"


def write_array(storage: Any, array: Any) -> None:
    numpy: Any = sys.modules["numpy"]
    memory = (ctypes.c_char * array.nbytes).from_address(storage.data_ptr())
    target = numpy.frombuffer(memory, dtype=array.dtype).reshape(array.shape, order=order_of(array))
    numpy.copyto(target, array)


def read_array(storage: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    import numpy

    array = numpy.ndarray.__new__(numpy.ndarray, (0,), "b")
    memory = ctypes.string_at(storage.data_ptr(), math.prod(shape) * dtype.itemsize)
    array.__setstate__((1, shape, dtype, order == "F", memory))  # as the unpickler does
    return array


_MOST_EXAMINED = 10_000  # maximum number of values of a batch, because searching a long list of numbers takes too long
_DEEPEST = 5
_LEAVES = (str, bytes, int, float, bool, complex, type(None))
# Reference counts of an object that only the batch holds. The references come from its container, our variable and the
# argument of `getrefcount`.
_IN_CONTAINER = 3
_AT_TOP_LEVEL = 4  # of the batch itself; a variable of torch's worker loop refers to it too
_reductions: Any = torch.multiprocessing.reductions


class BatchPayload:
    """A pickled batch. It unpickles to torch's own message."""

    def __init__(self, pool: Pool, content: bytes, has_buffers: bool) -> None:
        self._contents: tuple[Any, ...] = None, None, content
        if has_buffers:
            self._contents = pool.key, None if pool.has_travelled() else pool.states.storage, content

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return open_payload, self._contents


class PayloadQueue:
    """A worker's queue to the main process. It sends batches in buffers."""

    def __init__(self, queue: Any, pool: Pool) -> None:
        self._queue = queue
        self._pool = pool

    def put(self, message: Any) -> None:
        payload = None
        if self._pool.is_in_service and type(message) is tuple and not isinstance(message[1], ExceptionWrapper):
            try:
                payload = pack(self._pool, message)
            except Exception:  # for an object that cannot be pickled, torch raises its own error
                self._pool.is_in_service = False
        self._queue.put(message if payload is None else payload)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def pack(pool: Pool, message: tuple[Any, Any]) -> BatchPayload | None:
    """Pickles a message of torch's worker loop. Returns None if nothing in the batch can be sent in a buffer."""
    batch = message[1]
    is_own = sys.getrefcount(batch) <= _AT_TOP_LEVEL
    found = list(_holdings([(batch, is_own)]))
    pickler = _Pickler(pool)
    for storage, num_tensors in _storages(found).values():
        is_own = 0 < num_tensors == holders_of(storage) and storage.nbytes() > 0 and storage.data_ptr() != 0
        buffer = pool.owner(storage) or (_fill(pool, storage) if is_own else None)
        if buffer is not None and pool.states[buffer.number] not in (VACANT, FREE):
            pool.abandon(buffer)  # the dataset keeps this batch and sends it repeatedly
        elif buffer is not None:
            pickler.choose(storage, buffer)
        elif is_own and storage.nbytes() <= SMALL:
            pickler.small.add(storage._cdata)
    payload = None
    if pickler.chosen or pickler.small or any(is_large_array(thing) for thing, _ in found):
        content = pickler.pickle(message)
        payload = BatchPayload(pool, content, bool(pickler.sent))
    pool.close_batch(pickler.sent)
    return payload


def _fill(pool: Pool, storage: Any) -> Buffer | None:
    """Copies a storage that other code created into a buffer. This is faster than sending it in new shared memory,
    whose pages the system must first provide."""
    buffer = pool.take(storage.nbytes())
    if buffer is not None:
        bytes_of(buffer.storage).copy_(bytes_of(storage))
    return buffer


def bytes_of(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class _Pickler(ForkingPickler):
    def __init__(self, pool: Pool) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file)
        self._pool = pool
        self.chosen: dict[int, Buffer] = {}  # by the storage whose contents the buffer holds
        # Buffers that were pickled. The pickle of an object may leave out some of its tensors.
        self.sent: list[Buffer] = []
        self.small: set[int] = set()  # storages whose bytes are written into the message
        self._held: list[torch.Tensor] = []

    def choose(self, storage: Any, buffer: Buffer) -> None:
        self.chosen[storage._cdata] = buffer
        self._held.append(bytes_of(buffer.storage))  # because of this reference, the pool does not lend the buffer

    def pickle(self, message: Any) -> bytes:
        self.dump(message)
        return self._file.getvalue()

    def reducer_override(self, thing: Any) -> Any:
        if is_large_array(thing):
            return self._reduce_array(thing)
        if type(thing) is not torch.UntypedStorage:
            return NotImplemented
        if thing._cdata in self.small:
            return new_shared_storage, (ctypes.string_at(thing.data_ptr(), thing.nbytes()),)
        buffer = self.chosen.get(thing._cdata)
        if buffer is None:
            return NotImplemented
        self.sent.append(buffer)
        if self._pool.states[buffer.number] == VACANT:
            return adopt, (self._pool.key, buffer.number, *self._shared(buffer))
        return hand_out, (self._pool.key, buffer.number)

    def _reduce_array(self, array: Any) -> Any:
        buffer = self._pool.take(array.nbytes)
        if buffer is None:
            return NotImplemented
        self.choose(buffer.storage, buffer)
        write_array(buffer.storage, array)
        return read_array, (buffer.storage, array.dtype, array.shape, order_of(array))

    def _shared(self, buffer: Buffer) -> Any:
        self._pool.sending = buffer.ident
        try:
            return _reductions.reduce_storage(buffer.storage)
        finally:
            self._pool.sending = 0


def _storages(found: list[tuple[Any, bool]]) -> dict[int, tuple[Any, int]]:
    """Returns every storage of a batch, with the number of its tensors that only the batch holds."""
    storages: dict[int, tuple[Any, int]] = {}
    for tensor, is_own in found:
        if isinstance(tensor, torch.Tensor) and _is_plain(tensor):
            storage = tensor.untyped_storage()
            _, num_tensors = storages.get(storage._cdata, (storage, 0))
            storages[storage._cdata] = storage, num_tensors + is_own
    return storages


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's storage holds its values. A subclass that wraps other tensors has an empty storage."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_nested


def _holdings(things: list[tuple[Any, bool]]) -> Iterator[tuple[Any, bool]]:
    """Yields the tensors and arrays inside containers and plain objects. Each is yielded with a flag that tells whether
    only the batch holds it. If other code holds a container, it also holds the contents of the container."""
    num_left = _MOST_EXAMINED
    for _ in range(_DEEPEST):
        below: list[tuple[Any, bool]] = []
        for thing, is_own in things:
            if isinstance(thing, torch.Tensor) or is_large_array(thing):
                yield thing, is_own
                continue
            for values in _contents(thing):
                num_left -= len(values)
                if num_left < 0:
                    return
                for value in values:
                    if not isinstance(value, _LEAVES):
                        is_alone = is_own and sys.getrefcount(value) <= _IN_CONTAINER
                        below.append((value, is_alone))
        things = below


def _contents(thing: Any) -> Iterator[Any]:
    if isinstance(thing, (list, tuple)):
        yield thing
    elif isinstance(thing, dict):
        yield thing.values()
    attributes = getattr(thing, "__dict__", None)
    if type(attributes) is dict and not isinstance(thing, type):
        yield attributes.values()
