"""Decodes an image at a half, a quarter or an eighth of its size, as Pillow's own `thumbnail` does. This is done only
if the script shrinks the image before it uses the pixels. The pixels are not the same as those of the whole image. A
crop is postponed until the call that shrinks it. Other operations get the pixels as Pillow decodes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from PIL import Image

from slipstream.data.images.jpeg_file import JpegSource
from slipstream.data.images.lazy_decode import Box, LazyDecode, Method, PendingImage, empty_image
from slipstream.seams.patching import Patches

_SCALES = (8, 4, 2)  # scales at which libjpeg can decode
_NUM_TRIED = 64  # images in a process; if none of them could be scaled, decoding is no longer postponed


class ScaledDecode(LazyDecode):
    def __init__(self, gap: int, on_use: Callable[[], None], on_none: Callable[[], None]) -> None:
        """`gap`: the decoded image must be at least this many times larger than the requested size."""
        super().__init__()
        self._gap = gap
        self._on_use = on_use
        self._on_none = on_none
        self._num_scaled = 0
        self._num_whole = 0

    def install(self, patches: Patches) -> None:
        super().install(patches)
        patches.replace(Image.Image, "resize", self._resizing(Image.Image.resize))

    def pending_of(self, image: Any) -> PendingImage | None:
        is_useless = self._num_whole >= _NUM_TRIED and not self._num_scaled
        return None if is_useless else super().pending_of(image)

    def pixels(self, pending: PendingImage) -> Any:
        self._num_whole += 1
        if self._num_whole == _NUM_TRIED and not self._num_scaled:
            self._on_none()
        if pending.is_whole:
            return super().pixels(pending)
        source = pending.source  # keeps all pixels, because another part may be requested next
        assert isinstance(source, JpegSource)
        source.kept = source.kept or source.decode()
        return source.kept.crop(pending.box)

    def crop(self, image: Any, pending: PendingImage, box: Box) -> Any:
        left, upper = pending.box[:2]
        inner = (left + box[0], upper + box[1], left + box[2], upper + box[3])
        return empty_image(image, PendingImage(pending.source, inner))

    def _resizing(self, original: Method) -> Method:
        @functools.wraps(original)
        def resize(image: Any, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
            try:
                small = self._shrink(image, size, resample, box, reducing_gap)
            except Exception:  # Pillow decodes the whole image and reports errors of the image or the call
                small = None
            return original(image, size, resample, box, reducing_gap) if small is None else small

        return resize

    def _shrink(self, image: Any, size: Any, resample: Any, box: Any, reducing_gap: Any) -> Any:
        """Returns the resized image, decoded at a smaller scale. Returns None if the image is not shrunk far enough."""
        if resample == Image.Resampling.NEAREST:
            return None
        left, upper, right, lower = box or (0, 0, *image.size)
        is_inside = 0 <= left < right <= image.size[0] and 0 <= upper < lower <= image.size[1]
        factor = min((right - left) / size[0], (lower - upper) / size[1]) / self._gap
        scale = next((scale for scale in _SCALES if scale <= factor), 1)
        pending = self.pending_of(image) if scale > 1 and is_inside else None
        if pending is None:
            return None
        assert isinstance(pending.source, JpegSource)
        x, y = pending.box[:2]
        small = pending.source.open()
        small.draft(small.mode, (max(1, small.width // scale), max(1, small.height // scale)))
        part = tuple(edge / scale for edge in (x + left, y + upper, x + right, y + lower))
        result = small.resize(size, resample, part, reducing_gap)
        self._num_scaled += 1
        self._on_use()
        return result
