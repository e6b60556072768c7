"""`Image.resize` by C of ours, in front of Pillow's. The first images of every mode and filter, and then one in many,
are resized both ways and compared in every byte; one that differs ends it for good. Whatever is unusual is Pillow's:
other modes and filters, `reducing_gap`, boxes over the edge, mistakes in a call."""

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

_LEAST_PIXELS = 4096  # of both sizes together; below, the way into C takes as long as Pillow does
Method = Callable[..., Any]
Task = tuple[tuple[int, int], int, Edges]  # the new size, the filter, the box
_KINDS = {kind: number for number, kind in enumerate((mode, filter) for mode in MODES for filter in FILTERS)}


class Resizing:
    def __init__(self, resampler: Resampler, on_use: Callable[[], None], on_difference: Callable[[], None]) -> None:
        self._resampler = resampler
        self._on_use = on_use
        self._on_difference = on_difference
        self._trust = SpotCheck()

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
                image.load()  # as Pillow would do here: what it raises about a file is the script's to see
            new = self._try(image, task, part) if whole[2:] == image.size else None  # icons may change their size now
            return original(image, size, resample, whole if box is None else box) if new is None else new

        return resize

    def _task(self, image: Any, size: Any, resample: Any, box: Any) -> Task | None:
        """None: Pillow does it, or says what is wrong with the call."""
        try:
            resample = Image.Resampling.BICUBIC if resample is None else resample
            kind = _KINDS.get((image.mode, resample))
            if kind is None or not isinstance(resample, int) or not self._trust.has(kind):
                return None
            width, height = map(operator.index, size)
            edges = edges_of(box, image.size, (width, height))
            if edges is None or width * height + _area(edges) < _LEAST_PIXELS:
                return None
            return (width, height), int(resample), edges
        except Exception:
            return None

    def _try(self, image: Any, task: Task, part: tuple[Any, Box] | None) -> Any:
        """Of an image that has yet to be cut out of another, without the cutting."""
        try:
            core, box = (image.im, None) if part is None else part
            if core.mode != image.mode or (box is None and core.size != image.size):
                return None
            new = self._resampler.resize(core, *task, box)
            kind = _KINDS[image.mode, task[1]]
            if new is None or (self._trust.wants_proof(kind) and not self._is_proved(image.im, new, task, kind)):
                return None
            self._on_use()
            return image._new(new)
        except Exception:  # memory that ran out, say: Pillow does it, or finds the same
            return None

    def _is_proved(self, core: Any, new: Any, task: Task, kind: int) -> bool:
        if is_same(new, core.resize(*task)):
            self._trust.note_proof(kind)
            return True
        for other in _KINDS.values():
            self._trust.withdraw(other)
        self._on_difference()
        return False


def _area(edges: Edges) -> float:
    left, upper, right, lower = edges
    return (right - left) * (lower - upper)
