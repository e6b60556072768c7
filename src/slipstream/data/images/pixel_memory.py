"""Where Pillow holds the pixels of an image: the table of its rows. Pillow offers its C structures to other C code and
says nothing of their layout to Python, so the layouts that are known are tried on images of known sizes, and only the
one that describes all of them is believed. Copies nothing, keeps no image alive."""

from __future__ import annotations

import ctypes
from typing import Any

import PIL
from PIL import Image

_SIZES = ((5, 3), (7, 2), (1, 11))
_PIXEL_BYTES = {"L": 1, "RGB": 4}

_BODY: list[Any] = [
    ("type", ctypes.c_int),
    ("depth", ctypes.c_int),
    ("bands", ctypes.c_int),
    ("width", ctypes.c_int),
    ("height", ctypes.c_int),
    ("palette", ctypes.c_void_p),
    ("bytes_rows", ctypes.c_void_p),  # set where a pixel is a byte
    ("words_rows", ctypes.c_void_p),  # set where it is four
    ("rows", ctypes.c_void_p),
    ("block", ctypes.c_void_p),
    ("blocks", ctypes.c_void_p),
    ("pixel_bytes", ctypes.c_int),
    ("row_bytes", ctypes.c_int),
]


class _Named(ctypes.Structure):
    """The mode by its name: Pillow 11."""

    _fields_ = [("mode", ctypes.c_char * 7), *_BODY]


class _Numbered(ctypes.Structure):
    """By a number: later ones."""

    _fields_ = [("mode", ctypes.c_int), *_BODY]


_name_of: Any = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class PixelMemory:
    def __init__(self) -> None:
        """Raises `LookupError` where this Pillow lays images out in a way that is not known."""
        core: Any = vars(Image)["core"]
        images = [core.new(mode, size) for mode in _PIXEL_BYTES for size in _SIZES]
        try:
            fitting = [layout for layout in (_Numbered, _Named) if all(self._fits(layout, i) for i in images)]
        except Exception as fault:
            raise LookupError(f"Pillow {PIL.__version__} does not show where pixels are: {fault}") from fault
        if len(fitting) != 1:
            raise LookupError(f"Pillow {PIL.__version__} lays images out in a way that is not known")
        self._offset: int = fitting[0].rows.offset

    def rows(self, core: Any) -> int:
        """Address of the table of an image's rows. As good as the image lives."""
        address = self._address(core)
        rows = ctypes.c_void_p.from_address(address + self._offset).value
        if not rows:
            raise LookupError("an image without rows")
        return rows

    def _fits(self, layout: type[Any], core: Any) -> bool:
        memory, num_bytes = layout.from_address(self._address(core)), _PIXEL_BYTES[core.mode]
        own, other = (
            (memory.bytes_rows, memory.words_rows) if num_bytes == 1 else (memory.words_rows, memory.bytes_rows)
        )
        sizes = (memory.width, memory.height, memory.pixel_bytes, memory.row_bytes)
        is_fitting: bool = sizes == (*core.size, num_bytes, core.size[0] * num_bytes)
        return is_fitting and bool(own) and own == memory.rows and not other

    def _address(self, core: Any) -> int:
        capsule = core.ptr
        address: int = _pointer_of(capsule, _name_of(capsule))
        return address
