"""JPEGs decoded by Pillow's own libjpeg-turbo without Pillow in between: the same library with the same settings, so
the same pixels, in a tenth less time. The first pictures of every kind, and then one in many, are decoded by Pillow too
and compared. Whatever is damaged or unusual is refused, and is Pillow's to decode or to complain of."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, features

from slipstream.data.c_library import CompileError, load_library
from slipstream.data.pixel_memory import PixelMemory
from slipstream.data.trust import Trust

_SOURCE = Path(__file__).with_name("libjpeg.c")
_CORE: Any = vars(Image)["core"]
_PIXEL_BYTES = {"L": 1, "RGB": 4}
_FUNCTIONS = (
    "jpeg_std_error",
    "jpeg_CreateDecompress",
    "jpeg_mem_src",
    "jpeg_read_header",
    "jpeg_start_decompress",
    "jpeg_read_scanlines",
    "jpeg_finish_decompress",
    "jpeg_destroy_decompress",
)


class Libjpeg:
    def __init__(self) -> None:
        """Raises `CompileError` or `LookupError`: why it cannot be."""
        self._memory = PixelMemory()
        self._functions = _find_functions()
        library, number, address = load_library(_SOURCE), ctypes.c_int, ctypes.c_void_p
        version, num_bytes = number(), number()
        if not library.slipstream_jpeg_ask(self._functions, ctypes.byref(version), ctypes.byref(num_bytes)):
            raise LookupError(f"Pillow's libjpeg has version {version.value}, which is not known")
        self._about = version.value, num_bytes.value
        self._decode: Any = library.slipstream_jpeg_decode
        size, count = ctypes.c_size_t, ctypes.c_uint
        self._decode.argtypes = [address, number, number, ctypes.c_char_p, size, address, *[count] * 3, number]

    def fill(self, core: Any, data: bytes, height: int) -> bool:
        """The rows of an image that has as many as are wanted, of a picture of this height. What is in them is nothing
        where the answer is no."""
        width, num_rows = core.size
        rows = self._memory.rows(core)
        sizes = width, height, num_rows, _PIXEL_BYTES[core.mode]
        return bool(self._decode(self._functions, *self._about, data, len(data), rows, *sizes))


class DirectDecoding:
    """A `Libjpeg` that is trusted as far as it was proved."""

    def __init__(self, library: Libjpeg, on_difference: Callable[[], None]) -> None:
        self._library = library
        self._on_difference = on_difference
        self._trust = Trust()

    def fill(self, core: Any, data: bytes, height: int, kind: int) -> bool:
        """As the library does. A picture that came out otherwise is Pillow's afterwards."""
        if not self._trust.has(kind):
            return False
        if not self._library.fill(core, data, height):
            self._trust.blame(kind)
            return False
        if self._trust.wants_proof(kind):
            self._prove(core, data, kind)
        return self._trust.has(kind)

    def _prove(self, core: Any, data: bytes, kind: int) -> None:
        from slipstream.data.jpeg_file import feed
        from slipstream.data.top_rows import is_same

        wanted, _ = feed(core.mode, core.size, data)
        if is_same(core, wanted):
            self._trust.note_proof(kind)
        else:
            self._trust.withdraw(kind)
            self._on_difference()


def find_direct(on_difference: Callable[[], None]) -> DirectDecoding | None:
    """None where there is no compiler, or a Pillow whose library cannot be called: nothing is lost but time."""
    try:
        return DirectDecoding(Libjpeg(), on_difference)
    except (CompileError, LookupError):
        return None


def _find_functions() -> Any:
    """Where they are in memory. Those that Pillow itself would find: of what its module is linked with."""
    if not features.version("libjpeg_turbo"):
        raise LookupError("Pillow has no libjpeg-turbo")
    try:
        pillow = ctypes.CDLL(_CORE.__file__)
        found = [ctypes.cast(getattr(pillow, name), ctypes.c_void_p).value for name in _FUNCTIONS]
    except (AttributeError, OSError) as fault:
        raise LookupError(f"Pillow's libjpeg cannot be called: {fault}") from fault
    return (ctypes.c_void_p * len(found))(*found)
