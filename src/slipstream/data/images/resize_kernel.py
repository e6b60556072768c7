"""Resizes 8-bit images with antialiasing in C, with exactly the same bytes as Pillow. The C code reads and writes
Pillow's own memory row by row, without the global interpreter lock. A part of an image is read in place. This module
determines which images it can resize. Its callers check the results."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Any

import PIL
from PIL import Image

from slipstream.data.images.c_build import load_library
from slipstream.data.images.pixel_memory import PixelMemory

_SOURCE = Path(__file__).with_name("resize.c")
_MOST = 32_767  # maximum number of pixels of an edge; Pillow resizes larger images
_WHOLE = 0xFFFFFFFF
# The bytes of a pixel in memory, and a mask of the bytes that Pillow does not set to zero when it resizes. Pillow
# converts RGBA and LA to RGBa and La before it resizes.
MODES = {
    "L": (1, _WHOLE),
    "RGB": (4, 0x00FFFFFF),
    "RGBX": (4, _WHOLE),
    "RGBa": (4, _WHOLE),
    "La": (4, 0xFF0000FF),
    "CMYK": (4, _WHOLE),
}
FILTERS = (1, 2, 3, 4, 5)  # Pillow's numbers for Lanczos, bilinear, bicubic, box and Hamming
Edges = tuple[float, float, float, float]
Part = tuple[int, int, int, int]


class Resampler:
    def __init__(self) -> None:
        """Raises `CompileError` or `LookupError` with the reason if the C code cannot be used."""
        self._memory = PixelMemory()
        self._new: Any = vars(Image)["core"].new
        self._resize: Any = load_library(_SOURCE).slipstream_resize
        number, real, table = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
        self._resize.restype = number
        self._resize.argtypes = [table, table, *[number] * 3, ctypes.c_uint32, *[number] * 5, *[real] * 4, number]
        self._may_be_down_first = self._detect_order()

    def resize(self, core: Any, size: tuple[int, int], resample: int, edges: Edges, part: Part | None = None) -> Any:
        """Returns the resized image, or None if memory is short. If `part` is given, only this part of the image is
        read, as if it were the whole image."""
        left, upper, right, lower = part or (0, 0, *core.size)
        (width, height), (pixel_bytes, mask) = (right - left, lower - upper), MODES[core.mode]
        new = self._new(core.mode, size)
        is_down_first = self._may_be_down_first and _is_down_first((width, height), size)
        is_done = self._resize(
            self._memory.rows(new),
            self._memory.rows(core),
            *(left, upper),
            pixel_bytes,
            mask,
            *(width, height),
            *size,
            resample,
            *edges,
            is_down_first,
        )
        return new if is_done else None

    def _detect_order(self) -> bool:
        """Whether Pillow shrinks tall images vertically first, as it does from version 13 on. The order affects the
        rounding, so a test image determines it."""
        size, new_size, rng = (12, 40), (10, 16), random.Random(0)
        image: Any = Image.frombytes("L", size, bytes(rng.choices(range(256), k=size[0] * size[1])))
        task = new_size, FILTERS[1], (0.0, 0.0, float(size[0]), float(size[1]))
        wanted = image._new(image.im.resize(*task)).tobytes()
        equal = []
        for self._may_be_down_first in (False, True):
            ours = self.resize(image.im, *task)
            if ours is not None and image._new(ours).tobytes() == wanted:
                equal.append(self._may_be_down_first)
        if len(equal) != 1:
            raise LookupError(f"Pillow {PIL.__version__} resizes in another way than versions 11 to 13")
        return equal[0]


def _is_down_first(size: tuple[int, int], new_size: tuple[int, int]) -> bool:
    return size[1] - new_size[1] > max(0, 2 * (size[0] - new_size[0]))


def edges_of(box: Any, size: tuple[int, int], new_size: tuple[int, int]) -> Edges | None:
    """Returns the box as Pillow interprets it. Returns None if the box is not inside the image or if Pillow would only
    copy."""
    width, height = size
    if max(width, height, *new_size) > _MOST or min(width, height, *new_size) < 1:
        return None
    if box is None:
        return None if size == new_size else (0.0, 0.0, float(width), float(height))
    if len(box) != 4 or not all(isinstance(edge, (int, float)) for edge in box):
        return None
    # Pillow rounds the edges to single precision.
    left, upper, right, lower = (ctypes.c_float(edge).value for edge in box)
    if not (0 <= left < right <= width and 0 <= upper < lower <= height):
        return None
    is_copy = left == int(left) and upper == int(upper) and (right - left, lower - upper) == new_size
    return None if is_copy else (left, upper, right, lower)
