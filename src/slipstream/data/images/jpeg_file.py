"""JPEG files that Pillow has opened and not yet decoded: which can be decoded later from their bytes, and how. Several
frames in a file, CMYK, a picture that is cut off, and file objects other than plain files and bytes are Pillow's."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

_MODES = ("RGB", "L")
_PLAIN_FILES = (io.BytesIO, io.BufferedReader)
_END = b"\xff\xd9"  # cannot occur in a picture's data but at its end
_START_OF_SCAN = 0xDA
_FRAMES = (0xC0, 0xC1, 0xC2)  # say the size of the picture, in four bytes
_APART = (*range(0xE0, 0xF0), 0xFE)  # what programs and people say about it
_taken: set[bytes] = set()  # tables of headers that the decoder took: most files of a data set have the same
_MOST_TAKEN = 1024
_CORE: Any = vars(Image)["core"]  # what Pillow has in C


def is_undecoded(image: Any) -> bool:
    """Opened, and neither decoded nor told by `draft` to be decoded otherwise than whole."""
    if type(image) is not JpegImageFile or len(image.tile) != 1 or image._im is not None or image.decoderconfig:
        return False
    codec, extents, offset, arguments = image.tile[0]
    is_whole = codec == "jpeg" and extents == (0, 0, *image.size) and offset == 0
    return is_whole and arguments == (image.mode, "") and image.mode in _MODES and type(image.fp) in _PLAIN_FILES


def kind_of(image: Any) -> int | None:
    """The number of what decides which way through libjpeg the picture takes: how much finer the light is stored than
    the colours, and as which colours. None: its rows cannot be had without the whole, or it could not be told whether
    they were reached."""
    light, *colours = (layer[1:3] for layer in image.layer)
    transform = image.info.get("adobe_transform", 3)
    if image.mode != "RGB" or "progressive" in image.info or image.bits != 8 or colours != [(1, 1), (1, 1)]:
        return None
    across, down = light
    is_known = 1 <= across <= 4 and 1 <= down <= 4 and transform in range(4)
    return transform * 16 + (across - 1) * 4 + down - 1 if is_known else None


class JpegSource:
    """An undecoded picture apart from its image: the bytes of the file, and what Pillow read in its header."""

    def __init__(self, image: Any, data: bytes) -> None:
        self.header = {name: value for name, value in vars(image).items() if name != "fp"}  # else it stays open
        self.size: tuple[int, int] = image.size
        self.mode: str = image.mode
        self.kind = kind_of(image)
        self.kept: Any = None  # all pixels, where somebody keeps them for others
        self._data = data

    @property
    def begins(self) -> bool:
        """Whether the decoder takes the header and gives a first row; what it refuses, Pillow is to refuse at once."""
        if self.kind is None:
            return True  # not to be told so
        tables = bytes([self.kind]) + _tables(self._data)
        if tables not in _taken:
            core, _ = self._feed(1)
            if not _is_written(core, 0):
                return False
            if len(_taken) < _MOST_TAKEN:
                _taken.add(tables)
        return True

    def open(self) -> Any:
        """An image as `Image.open` gave it, of the same picture."""
        image = JpegImageFile.__new__(JpegImageFile)
        vars(image).update(self.header, fp=io.BytesIO(self._data), tile=list(self.header["tile"]), _exclusive_fp=True)
        return image

    def decode(self) -> Any:
        """All pixels; raises what Pillow raises."""
        core, is_complete = self._feed(self.size[1])
        return core if is_complete else self.decode_by_load()

    def decode_by_load(self) -> Any:
        """The long way, as Pillow goes it: the file in pieces."""
        image = self.open()
        image.load()
        return image.im

    def decode_top(self, num_rows: int) -> Any:
        """The first rows. None: the decoder did not get so far."""
        core, _ = self._feed(num_rows)
        return core if _is_written(core, num_rows - 1) else None

    def _feed(self, num_rows: int) -> tuple[Any, bool]:
        """By Pillow's own decoder, which stops when it has the rows; and whether that was the whole picture."""
        extents = (0, 0, self.size[0], num_rows)
        core = _CORE.new(self.mode, extents[2:])
        decoder = Image._getdecoder(self.mode, "jpeg", (self.mode, ""))
        try:
            decoder.setimage(core, extents)
            is_complete = decoder.decode(self._data) == (-1, 0)
        finally:
            decoder.cleanup()
        return core, is_complete


def _is_written(core: Any, row: int) -> bool:
    """New memory is all zero; the decoder sets the unused fourth byte of every pixel."""
    pixel: Any = Image.Image()
    return bool(pixel._new(core.crop((0, row, 1, row + 1))).tobytes("raw", "RGBX")[3] == 255)


def _tables(data: bytes) -> bytes:
    """All of a header that the decoder may refuse: without the size, of which Pillow has made sure, and remarks."""
    parts, at = [], 2
    while data[at : at + 1] == b"\xff":
        marker = data[at + 1]
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker not in _APART:
            parts.append(data[at : at + 5] + data[at + 9 : end] if marker in _FRAMES else data[at:end])
        if marker == _START_OF_SCAN:
            break
        at = end
    return b"".join(parts)


def take_source(image: Any) -> JpegSource | None:
    """The picture of an undecoded image, which is left as Pillow's `load` would leave it, but for the pixels. None
    where the picture is cut off or cannot be decoded, or the file is the script's and goes on behind it: Pillow would
    stop reading there."""
    start = image.fp.tell()  # behind the header, unless the script moved on
    image.fp.seek(0)
    data: bytes = image.fp.read()
    end = data.rfind(_END, start)
    if end < 0 or (not image._exclusive_fp and end != len(data) - len(_END)):
        return None
    source = JpegSource(image, data)
    if not source.begins:
        return None
    image.map = None
    image.tile = []
    image.readonly = 0
    image.load_end()
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None
    return source
