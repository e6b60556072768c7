"""Decodes the pixels of an image only when they are needed. `Image.open(...).convert("RGB")` returns an image that has
a size, a mode and info, but no pixels yet. Code that asks for the pixels gets Pillow's, decoded completely. Subclasses
decode less for the operations that they recognise. If other code decodes for Pillow, such as a cache, that code still
decodes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import PIL
from PIL import Image, ImageFile

from slipstream.data.images.jpeg_file import JpegSource, is_undecoded, kind_of, take_source
from slipstream.seams.patching import Patches

_PENDING = "_slipstream_pending"  # attribute of an image that has no pixels yet
Box = tuple[int, int, int, int]
Method = Callable[..., Any]


def why_not_here() -> str:
    """Returns the reason why decoding cannot be postponed with this Pillow version, or "" if it can."""
    if not isinstance(vars(Image.Image).get("im"), property):
        return f"Pillow {PIL.__version__} stores pixels in another way than Pillow 11 and later"
    return ""


class DecodedImage:
    """Decoded pixels that no image object holds any more. They are copied for an image that needs all of them, but not
    for a part of the image."""

    def __init__(self, image: Any) -> None:
        self.size: tuple[int, int] = image.size
        self.core = image.im
        image._im = None

    def decode(self) -> Any:
        return self.core.copy()

    def cut(self, box: Box) -> Any:
        return self.core.crop(box)


class PendingImage:
    """The part of a source that an image without pixels stands for."""

    def __init__(self, source: JpegSource | DecodedImage, box: Box | None = None) -> None:
        self.source = source
        self.box = box or (0, 0, *source.size)
        self.was_asked = False  # whether a part of the image was requested

    @property
    def is_whole(self) -> bool:
        return self.box == (0, 0, *self.source.size)


class LazyDecode:
    takes_decoded = False  # whether to postpone copies of images that are already decoded, for example by a cache

    def __init__(self) -> None:
        self._load: Method | None = None  # our replacement of `load`; None if other code has replaced `load` too

    def install(self, patches: Patches) -> None:
        image, file, pixels = Image.Image, ImageFile.ImageFile, vars(Image.Image)["im"]
        load = self._settling(file.load)
        patches.replace(file, "load", load)
        self._load = None if hasattr(load.__wrapped__, "__wrapped__") else load
        patches.replace(image, "load", self._settling(image.load))
        patches.replace(image, "im", property(self._settling(pixels.fget), pixels.fset))
        patches.replace(image, "convert", self._converting(image.convert))
        patches.replace(image, "crop", self._cropping(image.crop))

    # --- operations on images ----------------------------------------------------------------------------------------

    def pending_of(self, image: Any) -> PendingImage | None:
        """Returns the pending part of an image that has no pixels yet, or None. An image that was only opened becomes
        pending."""
        pending: PendingImage | None = vars(image).get(_PENDING)
        if pending is not None:
            return pending if image._im is None else None
        if not is_undecoded(image) or self._is_load_replaced():
            return None
        source = take_source(image)
        return None if source is None else _postpone(image, source)

    def _is_load_replaced(self) -> bool:
        """Whether other code, such as a cache, decodes for Pillow."""
        return vars(ImageFile.ImageFile)["load"] is not self._load

    def _take_decoded(self, image: Any) -> None:
        """Decodes an image that cannot be postponed, and postpones the copy that the script requests. An exception of
        the decoder goes to the script, because a second `load` would not raise it again."""
        if self.takes_decoded and is_undecoded(image) and (self._is_load_replaced() or kind_of(image) is None):
            image.load()
            _postpone(image, DecodedImage(image))

    def _settling(self, original: Method) -> Any:
        @functools.wraps(original)
        def settle(image: Any) -> Any:
            pending: PendingImage | None = vars(image).get(_PENDING) if image._im is None else None
            if pending is not None:
                image.im = self.pixels(pending)
                vars(image).pop(_PENDING, None)  # another thread may have removed it
            return original(image)

        return settle

    def pixels(self, pending: PendingImage) -> Any:
        """Returns the pixels of a pending image."""
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
        except Exception:  # Pillow decodes the image and raises its own error
            return None

    def _try_pending(self, image: Any) -> PendingImage | None:
        try:
            return self.pending_of(image)
        except Exception:  # for example, the file cannot be read; Pillow then raises its own error
            return None

    def crop(self, image: Any, pending: PendingImage, box: Box) -> Any:
        """Returns the part of an image inside a box, or None if Pillow must crop the decoded pixels."""
        raise NotImplementedError


def _postpone(image: Any, source: JpegSource | DecodedImage) -> PendingImage:
    pending = PendingImage(source)
    setattr(image, _PENDING, pending)
    return pending


def empty_image(image: Any, pending: PendingImage) -> Any:
    """Returns the image that Pillow's own copy would be, but without pixels."""
    left, upper, right, lower = pending.box
    new: Any = Image.Image()
    new._mode, new._size = image.mode, (right - left, lower - upper)
    new.info = {key: value.copy() if isinstance(value, list) else value for key, value in image.info.items()}
    setattr(new, _PENDING, PendingImage(pending.source, pending.box))
    return new


def waiting_part(image: Any) -> tuple[Any, Box] | None:
    """Returns the decoded pixels and the box of an image that has not been cut out of them yet. The pixels are never
    written to. Returns None if the image has its own pixels or is not decoded yet."""
    pending: PendingImage | None = vars(image).get(_PENDING)
    if pending is None or image._im is not None or not isinstance(pending.source, DecodedImage):
        return None
    return pending.source.core, pending.box


def _box_inside(box: Any, size: tuple[int, int]) -> Box | None:
    """Returns the box, rounded as Pillow rounds it. Returns None if the box is empty, reaches beyond the image or is
    invalid. Pillow then handles the call and its errors."""
    try:
        left, upper, right, lower = (round(edge) for edge in box)
    except Exception:
        return None
    is_inside = 0 <= left < right <= size[0] and 0 <= upper < lower <= size[1]
    return (left, upper, right, lower) if is_inside else None
