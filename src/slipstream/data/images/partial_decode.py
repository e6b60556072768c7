"""A crop decodes the picture down to its lower edge and no further. The first crops of every kind of JPEG, and then one
in many, are cut out of the whole picture too and compared. A picture that is asked for twice is decoded whole, once.
Where somebody else decodes, a crop is cut out of their pixels without a copy of all of them, and only when its own are
needed: what resizes it may read it where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

from slipstream.data.images.jpeg_file import JpegSource
from slipstream.data.images.lazy_decode import Box, DecodedImage, LazyDecode, PendingImage, empty_image
from slipstream.data.images.spot_check import SpotCheck

_LEAST_PART = 0.05  # of a picture: a smaller crop is cut out at once, so that a script that keeps it keeps no more
_LEAST_SAVED = 0.02  # of the rows; below, the whole picture is as cheap


class PartialDecode(LazyDecode):
    takes_decoded = True

    def __init__(self, on_use: Callable[[], None], on_difference: Callable[[], None]) -> None:
        super().__init__()
        self._on_use = on_use
        self._on_difference = on_difference
        self._trust = SpotCheck()
        self._is_reused = False  # this script takes more than one part of a picture

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
            return None  # all of it is decoded next
        pending.was_asked = True
        return image._new(top.crop(box))

    def _cut_later(self, image: Any, pending: PendingImage, source: DecodedImage, box: Box) -> Any:
        left, upper = pending.box[:2]
        inner = (left + box[0], upper + box[1], left + box[2], upper + box[3])
        if _area(inner) < _LEAST_PART * _area((0, 0, *source.size)):
            return image._new(source.cut(inner))
        return empty_image(image, PendingImage(source, inner))

    def _top(self, pending: PendingImage, num_rows: int) -> Any:
        """None: the picture is to be decoded whole."""
        assert isinstance(pending.source, JpegSource)
        kind, height = pending.source.kind, pending.source.size[1]
        if kind is None or self._is_reused or num_rows > height * (1 - _LEAST_SAVED):
            return None
        if not self._trust.has(kind):
            return None
        top = pending.source.decode_top(num_rows)
        if top is None:
            self._trust.blame(kind)
        elif not self._trust.wants_proof(kind) or self._is_proved(pending, top, kind):
            self._on_use()
            return top
        return None

    def _is_proved(self, pending: PendingImage, top: Any, kind: int) -> bool:
        assert isinstance(pending.source, JpegSource)
        whole = pending.source.decode_by_load()
        if is_same(top, whole.crop((0, 0, *top.size))):
            self._trust.note_proof(kind)
            return True
        self._trust.withdraw(kind)
        self._on_difference()
        return False


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


def is_same(ours: Any, theirs: Any) -> bool:
    """Every byte, the unused fourth of a pixel too."""
    bare: Any = Image.Image()
    layout = "RGBX" if ours.mode == "RGB" else ours.mode
    is_alike = ours.mode == theirs.mode and ours.size == theirs.size
    return is_alike and bool(bare._new(ours).tobytes("raw", layout) == bare._new(theirs).tobytes("raw", layout))
