"""Pillow's antialiased resizing of 8-bit images by C of ours, with the very same bytes. Reads and writes Pillow's own
memory, row by row, without the interpreter's lock; a part of an image is read where it lies. Knows which images it can
do; how far it is trusted is not its matter."""

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
_MOST = 32_767  # pixels of an edge; what is larger is left to Pillow, and to its own limits
_WHOLE = 0xFFFFFFFF
# Bytes of a pixel in memory, and which of them Pillow leaves zero in what it resizes. RGBA and LA come here as the
# modes that Pillow itself converts them to.
MODES = {
    "L": (1, _WHOLE),
    "RGB": (4, 0x00FFFFFF),
    "RGBX": (4, _WHOLE),
    "RGBa": (4, _WHOLE),
    "La": (4, 0xFF0000FF),
    "CMYK": (4, _WHOLE),
}
FILTERS = (1, 2, 3, 4, 5)  # Pillow's numbers of Lanczos, bilinear, bicubic, box, Hamming
Edges = tuple[float, float, float, float]
Part = tuple[int, int, int, int]


class Resampler:
    def __init__(self) -> None:
        """Raises `CompileError` or `LookupError`: why it cannot be."""
        self._memory = PixelMemory()
        self._new: Any = vars(Image)["core"].new
        self._resize: Any = load_library(_SOURCE).slipstream_resize
        number, real, table = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
        self._resize.restype = number
        self._resize.argtypes = [table, table, *[number] * 3, ctypes.c_uint32, *[number] * 5, *[real] * 4, number]
        self._may_be_down_first = self._ask_order()

    def resize(self, core: Any, size: tuple[int, int], resample: int, edges: Edges, part: Part | None = None) -> Any:
        """A new image, as of one that is this part and no more: nothing outside it is looked at. None where memory is
        short."""
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

    def _ask_order(self) -> bool:
        """From version 13 on Pillow shrinks high images downwards first, which rounds otherwise: it is asked."""
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
            raise LookupError(f"Pillow {PIL.__version__} resizes otherwise than versions 11 to 13 do")
        return equal[0]


def _is_down_first(size: tuple[int, int], new_size: tuple[int, int]) -> bool:
    return size[1] - new_size[1] > max(0, 2 * (size[0] - new_size[0]))


def edges_of(box: Any, size: tuple[int, int], new_size: tuple[int, int]) -> Edges | None:
    """The box as Pillow reads it; None where it is not plainly inside the image, or where Pillow would only copy."""
    width, height = size
    if max(width, height, *new_size) > _MOST or min(width, height, *new_size) < 1:
        return None
    if box is None:
        return None if size == new_size else (0.0, 0.0, float(width), float(height))
    if len(box) != 4 or not all(isinstance(edge, (int, float)) for edge in box):
        return None
    left, upper, right, lower = (ctypes.c_float(edge).value for edge in box)  # as exactly as Pillow takes it
    if not (0 <= left < right <= width and 0 <= upper < lower <= height):
        return None
    is_copy = left == int(left) and upper == int(upper) and (right - left, lower - upper) == new_size
    return None if is_copy else (left, upper, right, lower)
