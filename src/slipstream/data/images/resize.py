"""Replaces `Image.resize` with our own C code. The first images of every mode and filter, and later one in 256, are
resized in both ways and compared byte by byte. One difference disables the replacement permanently. Pillow handles
unusual calls: other modes and filters, `reducing_gap`, boxes beyond the image, and invalid arguments."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from PIL import Image

from slipstream.data.images.lazy_decode import Box, waiting_part
from slipstream.data.images.partial_decode import is_same
from slipstream.data.images.resize_kernel import FILTERS, MODES, Edges, Resampler, edges_of
from slipstream.data.images.spot_check import SpotCheck
from slipstream.seams.patching import Patches

_LEAST_PIXELS = 4096  # of both sizes together; for fewer pixels, calling our C code takes as long as Pillow
Method = Callable[..., Any]
Task = tuple[tuple[int, int], int, Edges]  # the new size, the filter, the box
_KINDS = {kind: number for number, kind in enumerate((mode, filter) for mode in MODES for filter in FILTERS)}


class Resizing:
    def __init__(self, resampler: Resampler, on_use: Callable[[], None], on_difference: Callable[[], None]) -> None:
        self._resampler = resampler
        self._on_use = on_use
        self._on_difference = on_difference
        self._spot_check = SpotCheck()

    def install(self, patches: Patches) -> None:
        patches.replace(Image.Image, "resize", self._resizing(Image.Image.resize))

    def _resizing(self, original: Method) -> Method:
        @functools.wraps(original)
        def resize(image: Any, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
            task = self._task(image, size, resample, box) if reducing_gap is None else None
            if task is None:
                return original(image, size, resample, box, reducing_gap)
            whole = (0, 0, *image.size)
            part = waiting_part(image)
            if part is None:
                image.load()  # as in Pillow, so that the script gets an exception about the file
            new = self._try(image, task, part) if whole[2:] == image.size else None  # `load` may change an icon's size
            return original(image, size, resample, whole if box is None else box) if new is None else new

        return resize

    def _task(self, image: Any, size: Any, resample: Any, box: Any) -> Task | None:
        """Returns the arguments of a call that we handle, or None if Pillow must handle the call or report its
        errors."""
        try:
            resample = Image.Resampling.BICUBIC if resample is None else resample
            kind = _KINDS.get((image.mode, resample))
            if kind is None or not isinstance(resample, int) or not self._spot_check.has(kind):
                return None
            width, height = map(operator.index, size)
            edges = edges_of(box, image.size, (width, height))
            if edges is None or width * height + _area(edges) < _LEAST_PIXELS:
                return None
            return (width, height), int(resample), edges
        except Exception:
            return None

    def _try(self, image: Any, task: Task, part: tuple[Any, Box] | None) -> Any:
        """Returns the resized image, or None if that is not possible. `part` is set if the image has not been cut out
        of a larger one yet. The part is then read in place."""
        try:
            core, box = (image.im, None) if part is None else part
            if core.mode != image.mode or (box is None and core.size != image.size):
                return None
            new = self._resampler.resize(core, *task, box)
            kind = _KINDS[image.mode, task[1]]
            if new is None or (self._spot_check.wants_proof(kind) and not self._is_proved(image.im, new, task, kind)):
                return None
            self._on_use()
            return image._new(new)
        except Exception:  # for example, memory is short; Pillow resizes the image or raises its own error
            return None

    def _is_proved(self, core: Any, new: Any, task: Task, kind: int) -> bool:
        if is_same(new, core.resize(*task)):
            self._spot_check.note_proof(kind)
            return True
        for other in _KINDS.values():
            self._spot_check.withdraw(other)
        self._on_difference()
        return False


def _area(edges: Edges) -> float:
    left, upper, right, lower = edges
    return (right - left) * (lower - upper)
