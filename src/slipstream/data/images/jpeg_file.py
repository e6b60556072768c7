"""JPEG files that Pillow has opened and not decoded yet: which of them can be decoded later from their bytes, and how.
Pillow alone handles files with several frames, CMYK images, truncated images, and file objects other than plain files
and bytes."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

_MODES = ("RGB", "L")
_PLAIN_FILES = (io.BytesIO, io.BufferedReader)
_END = b"\xff\xd9"  # in the data of an image, it occurs only at the end
_START_OF_SCAN = 0xDA
_FRAMES = (0xC0, 0xC1, 0xC2)  # markers of segments with the size of the image, in four bytes
_METADATA = (*range(0xE0, 0xF0), 0xFE)  # markers of application segments and comments
_accepted: set[bytes] = set()  # tables of headers that the decoder accepted; most files of a data set share them
_MOST_ACCEPTED = 1024
_CORE: Any = vars(Image)["core"]  # the C module of Pillow


def is_undecoded(image: Any) -> bool:
    """Whether the image is opened and not decoded, and `draft` has not set another size."""
    if type(image) is not JpegImageFile or len(image.tile) != 1 or image._im is not None or image.decoderconfig:
        return False
    codec, extents, offset, arguments = image.tile[0]
    is_whole = codec == "jpeg" and extents == (0, 0, *image.size) and offset == 0
    return is_whole and arguments == (image.mode, "") and image.mode in _MODES and type(image.fp) in _PLAIN_FILES


def kind_of(image: Any) -> int | None:
    """Returns a number for the code path that the image takes in libjpeg. The subsampling of the chroma components and
    the colour transform determine it. Returns None if rows cannot be decoded without the whole image, or if it would be
    unknown whether the decoder reached them."""
    light, *colours = (layer[1:3] for layer in image.layer)
    transform = image.info.get("adobe_transform", 3)
    if image.mode != "RGB" or "progressive" in image.info or image.bits != 8 or colours != [(1, 1), (1, 1)]:
        return None
    across, down = light
    is_known = 1 <= across <= 4 and 1 <= down <= 4 and transform in range(4)
    return transform * 16 + (across - 1) * 4 + down - 1 if is_known else None


class JpegSource:
    """An undecoded image that does not depend on Pillow's image object. It has the bytes of the file and the header
    that Pillow read."""

    def __init__(self, image: Any, data: bytes) -> None:
        # Without `fp`, because the file would stay open.
        self.header = {name: value for name, value in vars(image).items() if name != "fp"}
        self.size: tuple[int, int] = image.size
        self.mode: str = image.mode
        self.kind = kind_of(image)
        self.kept: Any = None  # all pixels, if a caller keeps them for further parts
        self._data = data

    @property
    def begins(self) -> bool:
        """Whether the decoder accepts the header and decodes the first row. If it does not, Pillow decodes the image
        and raises its error at once."""
        if self.kind is None:
            return True  # such an image cannot be checked in this way
        tables = bytes([self.kind]) + _tables(self._data)
        if tables not in _accepted:
            core, _ = self._feed(1)
            if not _is_written(core, 0):
                return False
            if len(_accepted) < _MOST_ACCEPTED:
                _accepted.add(tables)
        return True

    def open(self) -> Any:
        """Returns a new image object in the state in which `Image.open` returned the first one."""
        image = JpegImageFile.__new__(JpegImageFile)
        vars(image).update(self.header, fp=io.BytesIO(self._data), tile=list(self.header["tile"]), _exclusive_fp=True)
        return image

    def decode(self) -> Any:
        """Returns all pixels. Raises the same exceptions as Pillow."""
        core, is_complete = self._feed(self.size[1])
        return core if is_complete else self.decode_by_load()

    def decode_by_load(self) -> Any:
        """Returns all pixels, decoded by Pillow's own `load`, which reads the file in pieces."""
        image = self.open()
        image.load()
        return image.im

    def decode_top(self, num_rows: int) -> Any:
        """Returns the first rows, or None if the decoder did not reach the last one of them."""
        core, _ = self._feed(num_rows)
        return core if _is_written(core, num_rows - 1) else None

    def _feed(self, num_rows: int) -> tuple[Any, bool]:
        """Decodes with Pillow's own decoder, which stops after these rows. Returns the pixels and whether the decoder
        reached the end of the image."""
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
    """Whether the decoder wrote this row. New memory is zero, and the decoder sets the unused fourth byte of every
    pixel."""
    pixel: Any = Image.Image()
    return bool(pixel._new(core.crop((0, row, 1, row + 1))).tobytes("raw", "RGBX")[3] == 255)


def _tables(data: bytes) -> bytes:
    """Returns the parts of a header that the decoder may reject. Metadata is left out, and so is the size, which Pillow
    has already checked."""
    parts, at = [], 2
    while data[at : at + 1] == b"\xff":
        marker = data[at + 1]
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker not in _METADATA:
            parts.append(data[at : at + 5] + data[at + 9 : end] if marker in _FRAMES else data[at:end])
        if marker == _START_OF_SCAN:
            break
        at = end
    return b"".join(parts)


def take_source(image: Any) -> JpegSource | None:
    """Takes the source out of an undecoded image and returns it. The image is then in the state after Pillow's `load`,
    but without pixels. Returns None if the image is truncated or cannot be decoded. Also returns None if the script's
    own file has data after the image, because Pillow would stop reading there."""
    start = image.fp.tell()  # after the header, unless the script moved the position
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
