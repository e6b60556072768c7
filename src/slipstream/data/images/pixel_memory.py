"""Finds the memory of a Pillow image: the table of its rows. Pillow gives other C code access to its C structures but
does not tell Python their layout. The known layouts are therefore tried on images of known sizes. A layout is used only
if it is the only one that describes all of these images. Nothing is copied, and no image is kept alive."""

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
    ("bytes_rows", ctypes.c_void_p),  # set if a pixel has one byte
    ("words_rows", ctypes.c_void_p),  # set if a pixel has four bytes
    ("rows", ctypes.c_void_p),
    ("block", ctypes.c_void_p),
    ("blocks", ctypes.c_void_p),
    ("pixel_bytes", ctypes.c_int),
    ("row_bytes", ctypes.c_int),
]


class _Named(ctypes.Structure):
    """The layout of Pillow 11, which stores the mode as a name."""

    _fields_ = [("mode", ctypes.c_char * 7), *_BODY]


class _Numbered(ctypes.Structure):
    """The layout of later versions, which store the mode as a number."""

    _fields_ = [("mode", ctypes.c_int), *_BODY]


_name_of: Any = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class PixelMemory:
    def __init__(self) -> None:
        """Raises `LookupError` if the layout of this Pillow version is unknown."""
        core: Any = vars(Image)["core"]
        images = [core.new(mode, size) for mode in _PIXEL_BYTES for size in _SIZES]
        try:
            fitting = [layout for layout in (_Numbered, _Named) if all(self._fits(layout, i) for i in images)]
        except Exception as fault:
            raise LookupError(f"Pillow {PIL.__version__} gives no access to the memory of images: {fault}") from fault
        if len(fitting) != 1:
            raise LookupError(f"Pillow {PIL.__version__} has an unknown memory layout of images")
        self._offset: int = fitting[0].rows.offset

    def rows(self, core: Any) -> int:
        """Returns the address of the table of an image's rows. It is valid as long as the image lives."""
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
