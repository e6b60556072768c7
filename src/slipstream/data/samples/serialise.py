"""Converts a sample to bytes and back. All bits, the types of containers and strides are preserved. Tensors of a sample
that share memory still share it afterwards. A sample may consist of tensors, arrays and plain values in dictionaries,
lists and tuples. Any other sample is refused."""

from __future__ import annotations

import ctypes
import pickle
import struct
from collections import OrderedDict
from typing import Any

import numpy as np
import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ALIGNED = 64
# If a tensor or array spans more than this multiple of its own bytes, it counts as a small part of a larger one.
_WASTE = 2
_HEAD = struct.Struct("<q")
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class UnkeepableError(Exception):
    """The sample cannot be cached. The message is the reason, as a clause."""


class SamplePayload:
    """A serialised sample. `spec` describes how the sample is built, and `pieces` are the bytes of its memory."""

    def __init__(self, spec: Any, pieces: list[bytes]) -> None:
        self.spec = spec
        self.pieces = pieces

    def is_same(self, other: SamplePayload) -> bool:
        """Whether the serialised forms are equal. A NaN then equals itself, and 1 does not equal True."""
        return self.pieces == other.pieces and repr(self.spec) == repr(other.spec)

    def to_bytes(self) -> bytes:
        spec = pickle.dumps((self.spec, [len(piece) for piece in self.pieces]), protocol=5)
        parts = [_HEAD.pack(len(spec)), spec]
        for piece in self.pieces:
            parts.append(b"\0" * (-sum(map(len, parts)) % _ALIGNED))
            parts.append(piece)
        return b"".join(parts)


def pack(sample: Any) -> SamplePayload:
    packer = _Packer()
    spec = packer.outline(sample)
    return SamplePayload(spec, packer.pieces())


class _Packer:
    def __init__(self) -> None:
        self._things: dict[int, Any] = {}  # by id; kept alive, so that no id is used twice
        self._extents: dict[int, list[int]] = {}  # by storage: number, first byte, last byte, bytes of its tensors
        self._arrays: list[bytes] = []

    def outline(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or (isinstance(value, np.generic) and not isinstance(value, (np.void, np.object_))):
            return "value", kind.__name__, value
        if not isinstance(value, tuple):
            if id(value) in self._things:
                raise UnkeepableError("a sample holds the same object twice")
            self._things[id(value)] = value
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind is np.ndarray:
            return self._array(value)
        if kind in (dict, OrderedDict):
            if not all(type(key) in _PLAIN for key in value):
                raise UnkeepableError("a sample's dictionary has keys that are not plain values")
            return kind.__name__, [(key, self.outline(inner)) for key, inner in value.items()]
        if kind in (tuple, list):
            return kind.__name__, [self.outline(inner) for inner in value]
        if isinstance(value, tuple) and hasattr(value, "_fields") and kind.__qualname__.isidentifier():
            return "named", kind, [self.outline(inner) for inner in value]
        raise UnkeepableError(f"a sample holds a {kind.__name__}, which cannot be copied safely")

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.requires_grad or vars(tensor):
            raise UnkeepableError("a sample's tensor is not a plain tensor in CPU memory")
        if tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
            raise UnkeepableError("a sample's tensor is not a plain tensor in CPU memory")
        shape, strides, size = tuple(tensor.shape), tensor.stride(), tensor.element_size()
        if not tensor.numel():
            return "tensor", -1, str(tensor.dtype), 0, shape, strides
        first = int(tensor.storage_offset()) * size
        last = first + size * (1 + sum((int(n) - 1) * int(stride) for n, stride in zip(shape, strides, strict=True)))
        storage = tensor.untyped_storage().data_ptr()
        extent = self._extents.setdefault(storage, [len(self._extents), first, last, 0])
        extent[1:] = [min(extent[1], first), max(extent[2], last), extent[3] + tensor.numel() * size]
        return "tensor", extent[0], str(tensor.dtype), first, shape, strides

    def _array(self, array: Any) -> Any:
        if array.dtype.hasobject or array.dtype.names is not None or any(stride < 0 for stride in array.strides):
            raise UnkeepableError("a sample's array is not a plain array")
        if array.size and isinstance(array.base, np.ndarray) and id(array.base) in self._things:
            raise UnkeepableError("two of a sample's arrays share memory")
        span = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
        span = span if array.size else 0
        if span > _WASTE * array.nbytes:
            raise UnkeepableError("a sample's array is a small part of a larger one")
        self._things[id(array.base)] = array.base
        self._arrays.append(ctypes.string_at(array.ctypes.data, span))
        flags = bool(array.flags.writeable)
        return "array", len(self._arrays) - 1, array.dtype.str, array.shape, array.strides, flags

    def pieces(self) -> list[bytes]:
        """Returns the number of arrays, then the bytes of each array, then two pieces for each storage: the offset of
        its first byte, and its bytes."""
        found = [len(self._arrays).to_bytes(8, "little"), *self._arrays]
        for storage, (_, first, last, shown) in self._extents.items():
            start = first - first % _ALIGNED
            if last - start > _WASTE * shown + _ALIGNED:
                raise UnkeepableError("a sample's tensor is a small part of a larger one")
            found += [start.to_bytes(8, "little"), ctypes.string_at(storage + start, last - start)]
        return found


def read_payload(memory: Any, at: int) -> SamplePayload:
    """Returns the payload whose bytes begin at `at` in `memory`."""
    spec, places = _places(memory, at)
    return SamplePayload(spec, [bytes(memory[start : start + size]) for start, size in places])


def unpack(memory: Any, at: int) -> Any:
    """Returns a new sample that shares nothing with `memory`."""
    spec, places = _places(memory, at)
    return _Builder(memory, places).build(spec)


def _places(memory: Any, at: int) -> tuple[Any, list[tuple[int, int]]]:
    (length,) = _HEAD.unpack_from(memory, at)
    end = _HEAD.size + length
    spec, sizes = pickle.loads(memory[at + _HEAD.size : at + end])
    places = []
    for size in sizes:
        end += -end % _ALIGNED
        places.append((at + end, size))
        end += size
    return spec, places


class _Builder:
    def __init__(self, memory: Any, places: list[tuple[int, int]]) -> None:
        self._memory = memory
        self._arrays = places[1 : 1 + self._number(places[0][0])]
        self._storages = places[1 + len(self._arrays) :]
        self._made: dict[int, tuple[int, Any]] = {}

    def _number(self, at: int) -> int:
        return int.from_bytes(self._memory[at : at + 8], "little")

    def build(self, spec: Any) -> Any:
        kind, *rest = spec
        if kind == "value":
            return rest[1]
        if kind == "tensor":
            return self._tensor(*rest)
        if kind == "array":
            return self._array(*rest)
        if kind == "tuple":
            return tuple([self.build(inner) for inner in rest[0]])
        if kind == "list":
            return [self.build(inner) for inner in rest[0]]
        if kind == "named":
            return rest[0]._make([self.build(inner) for inner in rest[1]])
        pairs = [(key, self.build(inner)) for key, inner in rest[0]]
        return OrderedDict(pairs) if kind == "OrderedDict" else dict(pairs)

    def _tensor(self, number: int, dtype: str, first: int, shape: Any, strides: Any) -> torch.Tensor:
        if number < 0:
            return torch.empty_strided(shape, strides, dtype=_DTYPES[dtype], device="cpu")
        if number not in self._made:
            (start, _), (at, size) = self._storages[2 * number : 2 * number + 2]
            whole = torch.empty(size, dtype=torch.uint8, device="cpu")
            # NumPy copies in this thread. Torch would wake other threads for a few kilobytes.
            whole.numpy()[:] = np.frombuffer(self._memory, np.uint8, size, at)
            self._made[number] = (self._number(start), whole.untyped_storage())
        start, storage = self._made[number]
        empty = torch.empty(0, dtype=_DTYPES[dtype], device="cpu")
        return empty.set_(storage, (first - start) // empty.element_size(), shape, strides)

    def _array(self, number: int, dtype: str, shape: Any, strides: Any, is_writeable: bool) -> Any:
        at, size = self._arrays[number]
        whole = np.empty(size, np.uint8)
        whole[:] = np.frombuffer(self._memory, np.uint8, size, at)
        array: Any = np.ndarray(shape, dtype, whole, 0, strides)
        array.flags.writeable = is_writeable
        return array
