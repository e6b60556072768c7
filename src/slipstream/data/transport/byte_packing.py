"""Packs float images into the bytes that they were made from, with a table of the float for each byte.

Unpacking is only a table lookup, so it gives exactly the same bits on every device. Every value is checked while it is
packed. Images with more than 256 values in a channel, or with values that are not equally spaced, are refused.

`PackedBatches` carries the bytes along with the tensor of floats. They are in the tensor's own pickle from the worker,
and they are pinned with the tensor. They are used when the script asks for the tensor on the device. The batch itself
stays as the loader made it."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch

from slipstream.data.transport.live_batches import LiveBatches
from slipstream.seams.patching import Patches

_SPAN = 256  # different bytes
_FEWEST_VALUES = 16  # number of different values that determine the spacing
_MOST_CHANNELS = 4
_LEAST_ELEMENTS = 16 * 1024  # for a smaller tensor, a copy is mostly overhead
_TOLERANCE = 0.05  # deviation from equal spacing, as a share of the distance between two values
_UNKNOWN = 0x7FC00000  # NaN, which is never packed
_MOST_TRIES = 8  # after this many batches of nearly one colour, packing is given up


class Packed(NamedTuple):
    levels: torch.Tensor  # uint8, with the shape of the floats
    tables: torch.Tensor  # float32, with the shape (channels, 256)


def unpack(packed: Packed) -> torch.Tensor:
    """Returns the floats, on the device of the packed tensors."""
    levels, tables = packed
    num_channels = tables.shape[0]
    start = torch.arange(0, num_channels * _SPAN, _SPAN, dtype=torch.int32, device=levels.device)
    index = levels.to(torch.int32) + start.view(1, num_channels, 1, 1)
    return tables.flatten().index_select(0, index.flatten()).view(levels.shape)


def is_image_batch(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor or tensor.dtype != torch.float32 or tensor.dim() != 4:
        return False
    is_plain = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.requires_grad
    return is_plain and tensor.shape[1] <= _MOST_CHANNELS and tensor.numel() >= _LEAST_ELEMENTS


class MisfitError(Exception):
    """The floats were not made from bytes."""


class Packer:
    """Packs the tensor at one position of each batch. It remembers the values that it has seen."""

    def __init__(self) -> None:
        self.is_hopeless = False
        self._lines: list[_Line] = []
        self._num_tries = 0

    def pack(self, images: torch.Tensor) -> Packed | None:
        """Returns the packed images. Returns None if the images were not made from bytes, or if that is not known
        yet."""
        if self.is_hopeless:
            return None
        try:
            if len(self._lines) != images.shape[1] and not self._learn(images):
                return None
            return self._pack(images)
        except (MisfitError, IndexError, RuntimeError):  # NaN causes an invalid index
            self.is_hopeless = True
            return None

    def _learn(self, images: torch.Tensor) -> bool:
        if self._lines:
            raise MisfitError  # the number of channels has changed
        found = [_Line.through(images[:4, channel]) for channel in range(images.shape[1])]
        lines = [line for line in found if line is not None]
        if len(lines) < len(found):
            self._num_tries += 1
            self.is_hopeless = self._num_tries >= _MOST_TRIES
            return False
        self._lines = lines
        return True

    def _pack(self, images: torch.Tensor) -> Packed:
        levels = torch.empty(images.shape, dtype=torch.uint8, device="cpu")
        for channel, line in enumerate(self._lines):
            lowest = None
            while lowest != line.lowest:  # a value that is lower than all earlier ones shifts all bytes of the batch
                lowest = line.lowest
                for image, level in zip(images[:, channel], levels[:, channel], strict=True):
                    line.pack(image, level)
        return Packed(levels, torch.stack([line.table() for line in self._lines]))


class _Line:
    """The equally spaced values of one channel. The distance from the first value determines the slot of a value. A
    slot holds the bits of its value, so 0.0 and -0.0 are different."""

    def __init__(self, first: float, step: float) -> None:
        self._first = first
        self._step = step
        self._bits = torch.full((2 * _SPAN,), _UNKNOWN, dtype=torch.int32, device="cpu")
        self.lowest = _SPAN
        self._highest = _SPAN

    @classmethod
    def through(cls, values: torch.Tensor) -> _Line | None:
        """Returns the line through these values, or None if there are too few different values."""
        distinct = torch.unique(values)
        if len(distinct) > _SPAN or not bool(distinct.isfinite().all()):
            raise MisfitError
        if len(distinct) < _FEWEST_VALUES:
            return None
        line = cls(float(distinct[0]), float(distinct.diff().min()))
        line._add(distinct)
        return line

    def pack(self, image: torch.Tensor, level: torch.Tensor) -> None:
        """Writes the bytes of one image's channel into `level`."""
        slots = self._slots(image)
        if not self._holds(slots, image):
            self._add(torch.unique(image))
            if not self._holds(slots, image):
                raise MisfitError
        level.copy_(slots.sub_(self.lowest))

    def table(self) -> torch.Tensor:
        return self._bits[self.lowest : self.lowest + _SPAN].view(torch.float32).clone()

    def _slots(self, values: torch.Tensor) -> torch.Tensor:
        slots = torch.sub(values, self._first).mul_(1 / self._step).round_().add_(_SPAN)
        return slots.clamp_(0, 2 * _SPAN - 1).to(torch.int32)

    def _holds(self, slots: torch.Tensor, values: torch.Tensor) -> bool:
        """Whether each value equals the value in its slot, bit for bit."""
        kept, wanted = self._bits.index_select(0, slots.flatten()), values.reshape(-1).view(torch.int32)
        return np.array_equal(kept.numpy(), wanted.numpy())  # three times as fast as torch.equal

    def _add(self, distinct: torch.Tensor) -> None:
        places = (distinct.double() - self._first) / self._step
        slots = (places.round() + _SPAN).long()
        if bool(((places - places.round()).abs() > _TOLERANCE).any()) or len(torch.unique(slots)) < len(slots):
            raise MisfitError
        low, high = min(self.lowest, int(slots.min())), max(self._highest, int(slots.max()))
        if low < 0 or high - low >= _SPAN:
            raise MisfitError
        bits = distinct.view(torch.int32)
        is_known = self._bits[slots] != _UNKNOWN
        if not torch.equal(self._bits[slots][is_known], bits[is_known]):
            raise MisfitError
        self._bits[slots] = bits
        self.lowest, self._highest = low, high


_receiver: list[PackedBatches] = []  # objects that get the bytes of tensors that are unpickled in this process


class PackedBatches:
    """The packed bytes of live tensors."""

    def __init__(self) -> None:
        self._tensors = LiveBatches()
        self._pin = torch.Tensor.pin_memory

    def install(self, patches: Patches) -> None:
        reducers: dict[Any, Any] = vars(ForkingPickler)["_extra_reducers"]
        original = reducers[torch.Tensor]
        reducers[torch.Tensor] = self._reducing(original)
        patches.on_close(lambda: reducers.update({torch.Tensor: original}))
        _receiver.append(self)
        patches.on_close(lambda: _receiver.remove(self))
        patches.around(torch.Tensor, "pin_memory", "byte_packing.pin", None, self._after_pin)

    def add(self, tensor: torch.Tensor, packed: Packed) -> None:
        self._tensors.add(tensor, (packed, tensor._version))

    def of(self, tensor: torch.Tensor) -> Packed | None:
        """Returns the packed bytes of a tensor. Returns None if the tensor has none or was changed since it was
        packed."""
        packed, version = self._tensors.note_on(tensor) or (None, None)
        return packed if version == tensor._version else None

    def _reducing(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def reduce(tensor: Any) -> Any:
            packed = self.of(tensor)
            return original(tensor) if packed is None else (receive, (*original(tensor), *packed))

        return reduce

    def _after_pin(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        packed = self.of(args[0])
        if packed is not None:
            self.add(result, Packed(*(self._pin(part) for part in packed)))


def receive(rebuild: Callable[..., Any], args: tuple[Any, ...], levels: Any, tables: Any) -> Any:
    """Rebuilds the tensor as torch does, and stores its bytes. The process that reads the batch calls this function."""
    tensor = rebuild(*args)
    for batches in _receiver:
        batches.add(tensor, Packed(levels, tables))
    return tensor
