"""Pixels that are decoded when they are needed and not before: `Image.open(...).convert("RGB")` gives an image with
size, mode and info that has no pixels yet. Whatever asks for them gets Pillow's, decoded whole; subclasses know better
for what they see coming. Where somebody else decodes for Pillow, a cache say, decoding is left to them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import PIL
from PIL import Image, ImageFile

from slipstream.data.images.jpeg_file import JpegSource, is_undecoded, kind_of, take_source
from slipstream.seams.patching import Patches

_PENDING = "_slipstream_pending"  # on an image that has no pixels yet
Box = tuple[int, int, int, int]
Method = Callable[..., Any]


def why_not_here() -> str:
    """ "" where this Pillow can be put off."""
    if not isinstance(vars(Image.Image).get("im"), property):
        return f"Pillow {PIL.__version__} keeps pixels otherwise than Pillow 11 and later do"
    return ""


class DecodedImage:
    """Pixels that no image has any more: copied for whoever wants to have them, not for whoever wants a part."""

    def __init__(self, image: Any) -> None:
        self.size: tuple[int, int] = image.size
        self.core = image.im
        image._im = None

    def decode(self) -> Any:
        return self.core.copy()

    def cut(self, box: Box) -> Any:
        return self.core.crop(box)


class PendingImage:
    """What an image without pixels waits for: a part of a picture."""

    def __init__(self, source: JpegSource | DecodedImage, box: Box | None = None) -> None:
        self.source = source
        self.box = box or (0, 0, *source.size)
        self.was_asked = False  # for a part of it

    @property
    def is_whole(self) -> bool:
        return self.box == (0, 0, *self.source.size)


class LazyDecode:
    takes_decoded = False  # pictures that somebody else decodes, or that are better decoded at once

    def __init__(self) -> None:
        self._load: Method | None = None  # what stands at `load` while nobody else does

    def install(self, patches: Patches) -> None:
        image, file, pixels = Image.Image, ImageFile.ImageFile, vars(Image.Image)["im"]
        load = self._settling(file.load)
        patches.replace(file, "load", load)
        self._load = None if hasattr(load.__wrapped__, "__wrapped__") else load
        patches.replace(image, "load", self._settling(image.load))
        patches.replace(image, "im", property(self._settling(pixels.fget), pixels.fset))
        patches.replace(image, "convert", self._converting(image.convert))
        patches.replace(image, "crop", self._cropping(image.crop))

    # --- what images go through --------------------------------------------------------------------------------------

    def pending_of(self, image: Any) -> PendingImage | None:
        """Of an image that has no pixels yet; one that was only opened becomes one."""
        pending: PendingImage | None = vars(image).get(_PENDING)
        if pending is not None:
            return pending if image._im is None else None
        if not is_undecoded(image) or self._is_beside_another():
            return None
        source = take_source(image)
        return None if source is None else _postpone(image, source)

    def _is_beside_another(self) -> bool:
        return vars(ImageFile.ImageFile)["load"] is not self._load

    def _take_decoded(self, image: Any) -> None:
        """Where a picture is decoded at once, the copy of it that the script wants can still wait. What decoding raises
        is the script's: it is never only tried, since a second load would find no fault any more."""
        if self.takes_decoded and is_undecoded(image) and (self._is_beside_another() or kind_of(image) is None):
            image.load()
            _postpone(image, DecodedImage(image))

    def _settling(self, original: Method) -> Any:
        @functools.wraps(original)
        def settle(image: Any) -> Any:
            pending: PendingImage | None = vars(image).get(_PENDING) if image._im is None else None
            if pending is not None:
                image.im = self.pixels(pending)
                vars(image).pop(_PENDING, None)  # another thread may have done it
            return original(image)

        return settle

    def pixels(self, pending: PendingImage) -> Any:
        """All that an image waits for."""
        return pending.source.decode()

    def _converting(self, original: Method) -> Method:
        @functools.wraps(original)
        def convert(image: Any, *args: Any, **kwargs: Any) -> Any:
            is_copy = not kwargs and args == (image.mode,)
            if is_copy:
                self._take_decoded(image)
            pending = self._try_pending(image) if is_copy else None
            return original(image, *args, **kwargs) if pending is None else empty_image(image, pending)

        return convert

    def _cropping(self, original: Method) -> Method:
        @functools.wraps(original)
        def crop(image: Any, box: Any = None) -> Any:
            inside = _box_inside(box, image.size)
            if inside is None:
                return original(image, box)
            self._take_decoded(image)
            part = self._try_crop(image, inside)
            return original(image, box) if part is None else part

        return crop

    def _try_crop(self, image: Any, box: Box) -> Any:
        try:
            pending = self.pending_of(image)
            return None if pending is None else self.crop(image, pending, box)
        except Exception:  # Pillow decodes the picture, and says what is wrong with it
            return None

    def _try_pending(self, image: Any) -> PendingImage | None:
        try:
            return self.pending_of(image)
        except Exception:  # a file that cannot be read, say: Pillow finds out for itself, and says so
            return None

    def crop(self, image: Any, pending: PendingImage, box: Box) -> Any:
        """The part of an image inside a box; None: Pillow cuts it out of the pixels."""
        raise NotImplementedError


def _postpone(image: Any, source: JpegSource | DecodedImage) -> PendingImage:
    pending = PendingImage(source)
    setattr(image, _PENDING, pending)
    return pending


def empty_image(image: Any, pending: PendingImage) -> Any:
    """What Pillow's own copy of this image would be, without the pixels."""
    left, upper, right, lower = pending.box
    new: Any = Image.Image()
    new._mode, new._size = image.mode, (right - left, lower - upper)
    new.info = {key: value.copy() if isinstance(value, list) else value for key, value in image.info.items()}
    setattr(new, _PENDING, PendingImage(pending.source, pending.box))
    return new


def waiting_part(image: Any) -> tuple[Any, Box] | None:
    """The pixels that an image is a part of, and which part, where it has not been cut out of them yet. Nobody writes
    to them. None: the image has pixels of its own, or none at all so far."""
    pending: PendingImage | None = vars(image).get(_PENDING)
    if pending is None or image._im is not None or not isinstance(pending.source, DecodedImage):
        return None
    return pending.source.core, pending.box


def _box_inside(box: Any, size: tuple[int, int]) -> Box | None:
    """As Pillow rounds it; None where it is empty, reaches over the edge, or is none: Pillow says what is wrong."""
    try:
        left, upper, right, lower = (round(edge) for edge in box)
    except Exception:
        return None
    is_inside = 0 <= left < right <= size[0] and 0 <= upper < lower <= size[1]
    return (left, upper, right, lower) if is_inside else None
