"""Decodes an image only down to the lower edge of a crop.

The first crops of every kind of JPEG, and later one in 256, are also cut out of the whole image and compared. Once the
script has taken several parts of one image, each image is decoded completely and only once.

If other code decodes the image, such as a cache, the crop is cut out of the decoded pixels. Only the pixels of the crop
are copied, and only when they are needed. A resize can read the crop in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

from slipstream.data.images.jpeg_file import JpegSource
from slipstream.data.images.lazy_decode import Box, DecodedImage, LazyDecode, PendingImage, empty_image
from slipstream.data.images.spot_check import SpotCheck

# Minimum share of a crop in its image. A smaller crop is cut out at once, because a crop that waits keeps the whole
# image in memory.
_LEAST_PART = 0.05
_LEAST_SAVED = 0.02  # minimum share of rows that are not decoded; with less, decoding the whole image is as cheap


class PartialDecode(LazyDecode):
    takes_decoded = True

    def __init__(self, on_use: Callable[[], None], on_difference: Callable[[], None]) -> None:
        super().__init__()
        self._on_use = on_use
        self._on_difference = on_difference
        self._spot_check = SpotCheck()
        self._is_reused = False  # whether the script takes more than one part of an image

    def pixels(self, pending: PendingImage) -> Any:
        self._is_reused = self._is_reused or pending.was_asked
        self._on_use()
        if isinstance(pending.source, DecodedImage) and not pending.is_whole:
            return pending.source.cut(pending.box)
        return super().pixels(pending)

    def crop(self, image: Any, pending: PendingImage, box: Box) -> Any:
        if isinstance(pending.source, DecodedImage):
            self._on_use()
            return self._cut_later(image, pending, pending.source, box)
        self._is_reused = self._is_reused or pending.was_asked
        top = self._top(pending, box[3])
        if top is None:
            return None  # Pillow decodes the whole image next
        pending.was_asked = True
        return image._new(top.crop(box))

    def _cut_later(self, image: Any, pending: PendingImage, source: DecodedImage, box: Box) -> Any:
        left, upper = pending.box[:2]
        inner = (left + box[0], upper + box[1], left + box[2], upper + box[3])
        if _area(inner) < _LEAST_PART * _area((0, 0, *source.size)):
            return image._new(source.cut(inner))
        return empty_image(image, PendingImage(source, inner))

    def _top(self, pending: PendingImage, num_rows: int) -> Any:
        """Returns the first rows, or None if the whole image must be decoded."""
        assert isinstance(pending.source, JpegSource)
        kind, height = pending.source.kind, pending.source.size[1]
        if kind is None or self._is_reused or num_rows > height * (1 - _LEAST_SAVED):
            return None
        if not self._spot_check.has(kind):
            return None
        top = pending.source.decode_top(num_rows)
        if top is None:
            self._spot_check.blame(kind)
        elif not self._spot_check.wants_proof(kind) or self._is_proved(pending, top, kind):
            self._on_use()
            return top
        return None

    def _is_proved(self, pending: PendingImage, top: Any, kind: int) -> bool:
        assert isinstance(pending.source, JpegSource)
        whole = pending.source.decode_by_load()
        if is_same(top, whole.crop((0, 0, *top.size))):
            self._spot_check.note_proof(kind)
            return True
        self._spot_check.withdraw(kind)
        self._on_difference()
        return False


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


def is_same(ours: Any, theirs: Any) -> bool:
    """Whether all bytes are equal, including the unused fourth byte of each pixel."""
    bare: Any = Image.Image()
    layout = "RGBX" if ours.mode == "RGB" else ours.mode
    is_alike = ours.mode == theirs.mode and ours.size == theirs.size
    return is_alike and bool(bare._new(ours).tobytes("raw", layout) == bare._new(theirs).tobytes("raw", layout))
