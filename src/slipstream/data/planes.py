"""Pixels as bytes in one piece, and each colour for itself, by C of ours: bytes change places, nothing is computed. For
what Pillow holds as RGB and torch as bytes; who is given them, and whether they are believed, is not its matter."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

from slipstream.data.c_library import load_library
from slipstream.data.pixel_memory import PixelMemory

_SOURCE = Path(__file__).with_name("planes.c")
_NUM_COLOURS = 3

_new_bytes: Any = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t]
_address_of: Any = ctypes.pythonapi.PyBytes_AsString
_address_of.restype, _address_of.argtypes = ctypes.c_void_p, [ctypes.py_object]


class Planes:
    def __init__(self) -> None:
        """Raises `CompileError` or `LookupError`: why it cannot be."""
        self._memory = PixelMemory()
        library, number, address = load_library(_SOURCE), ctypes.c_int, ctypes.c_void_p
        self._pack: Any = library.slipstream_pack
        self._pack.restype, self._pack.argtypes = None, [address, address, number, number]
        self._part: Any = library.slipstream_part
        self._part.restype, self._part.argtypes = None, [address, address, ctypes.c_size_t]

    def pack(self, core: Any) -> bytes:
        """What `tobytes` gives of an RGB image."""
        width, height = core.size
        made: bytes = _new_bytes(None, width * height * _NUM_COLOURS)  # nobody else has it until it is written
        self._pack(_address_of(made), self._memory.rows(core), width, height)
        return made

    def part(self, pixels: torch.Tensor) -> torch.Tensor:
        """What `contiguous` gives of a tensor that `is_interleaved`."""
        planes = torch.empty(pixels.shape, dtype=torch.uint8)
        self._part(planes.data_ptr(), pixels.data_ptr(), pixels.shape[1] * pixels.shape[2])
        return planes


def is_interleaved(tensor: Any) -> bool:
    """Colours, height, width, where the colours of a pixel lie side by side: what `permute(2, 0, 1)` makes of an
    array of pixels."""
    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.uint8 or tensor.dim() != 3 or not tensor.is_cpu:
        return False
    num_colours, height, width = tensor.shape
    is_large = min(height, width) > 1  # else there may be nothing to be moved
    return num_colours == _NUM_COLOURS and is_large and tensor.stride() == (1, width * _NUM_COLOURS, _NUM_COLOURS)
