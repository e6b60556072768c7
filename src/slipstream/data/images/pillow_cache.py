"""Caches Pillow's decoding. The hook is at `ImageFile.load`, which runs after opening and `draft`. For a cached image,
Pillow's own `load` runs with a replaced decoder, so Pillow itself sets everything else on the image. Only JPEG and
still PNG images are cached. Pillow alone handles images with several frames, and files whose contents may change
without notice."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from slipstream.data.images.cache_folder import HEAD_BYTES, ImageFacts
from slipstream.data.images.decode_cache import DecodeCache, Identity, folder_of, identity_of, is_settled
from slipstream.data.images.pixel_store import HOLDS_DESCRIPTOR, SPARE_BYTES, Pixels, key_of
from slipstream.seams.patching import Patches

_KINDS = {("PIL.JpegImagePlugin", "JpegImageFile"), ("PIL.PngImagePlugin", "PngImageFile")}
# For each mode the raw mode that has exactly the bytes in Pillow's memory, and the number of bytes of a pixel.
_RAW = {
    "L": ("L", 1),
    "P": ("P", 1),
    "I;16": ("I;16", 2),
    "RGB": ("RGBX", 4),
    "RGBA": ("RGBA", 4),
    "CMYK": ("CMYK", 4),
    "YCbCr": ("YCbCrX", 4),
}
# Maximum number of images that are mapped at a time. Further images are copied. A mapping uses up a file descriptor, or
# at least one of a limited number of mappings, and torch needs both too.
_MOST_MAPPED = 64 if HOLDS_DESCRIPTOR else 4096


class _Here(threading.local):
    """The state of the current thread's `load`."""

    is_ready = False  # whether the pixels of the image are in memory already
    watched: _Watched | None = None
    is_watching = False


class _Done:
    """Replaces the decoder of an image whose pixels are in memory already."""

    pulls_fd = True  # so that Pillow reads nothing for this decoder

    def setimage(self, *_: Any) -> None: ...

    def setfd(self, *_: Any) -> None: ...

    def decode(self, *_: Any) -> tuple[int, int]:
        return -1, 0

    def cleanup(self) -> None: ...


class _Watched:
    """A decoder that records whether it reached the end of the image. With LOAD_TRUNCATED_IMAGES Pillow does not report
    that."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.is_complete = False

    def decode(self, data: Any) -> Any:
        result = self._decoder.decode(data)
        self.is_complete = result[0] < 0 <= result[1]
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)


class PillowDecoding:
    def __init__(self, cache: DecodeCache) -> None:
        self._cache = cache
        self._here = _Here()
        # The memory of images, by the id of Pillow's core object. The memory lives exactly as long as the core object.
        self._mapped: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._filled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def install(self, patches: Patches, files: ModuleType) -> None:
        """Patches Pillow. `files` is PIL.ImageFile."""
        self._files: Any = files
        self._images: Any = files.Image
        core = self._images.core
        versions = [getattr(core, name, "") for name in ("PILLOW_VERSION", "jpeglib_version", "zlib_version")]
        self._version = (*versions, getattr(core, "libjpeg_turbo_version", ""))
        patches.replace(files.ImageFile, "load", self._loading(files.ImageFile.load))
        patches.replace(self._images, "_getdecoder", self._choosing(self._images._getdecoder))
        if hasattr(self._images.Image, "__arrow_c_array__"):
            exporting = self._exporting(self._images.Image.__arrow_c_array__)
            patches.replace(self._images.Image, "__arrow_c_array__", exporting)

    # --- an image is loaded -------------------------------------------------------------------------------------------

    def _loading(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        bare = inspect.unwrap(original)  # without the wrappers of other techniques, which would decode

        @functools.wraps(original)
        def load(image: Any) -> Any:
            if not image.tile or not self._cache.is_on:
                return original(image)
            try:
                identity = self._identity(image)
                key = self._key(image, identity) if identity is not None else b""
                found = self._cache.find(key) if identity is not None else None
                core = self._core(image, found) if found is not None else None
            except Exception as fault:
                self._cache.disable(fault)
                return original(image)
            if found is not None and core is not None:
                return self._finish(image, found, core, bare)
            if identity is None or not is_settled(identity):
                return original(image)
            return self._decode(image, key, original)

        return load

    def _identity(self, image: Any) -> Identity | None:
        """Returns the identity of the image, or None if Pillow must decode it."""
        kind, known = type(image), vars(image)
        if (kind.__module__, kind.__name__) not in _KINDS or image.mode not in _RAW or len(image.tile) != 1:
            return None
        is_still = getattr(image, "n_frames", 1) == 1 and image._close_exclusive_fp_after_loading
        is_new = known.get("_im", known.get("im")) is None
        return identity_of(image.fp) if is_still and is_new else None

    def _key(self, image: Any, identity: Identity) -> bytes:
        """Returns the cache key of an image. The key includes whether the file object belongs to the script. If it
        does, the script can see the position of the file after loading, so this position is stored too."""
        how = (image.mode, image.size, tuple(image.tile[0]), image.decoderconfig, bool(image._exclusive_fp))
        return key_of("Pillow", self._version, identity, *how)

    def _core(self, image: Any, found: Pixels) -> Any:
        """Returns a core object of Pillow that uses the private mapping of the cached file. If too many files are
        mapped, it uses a copy. Returns None if the cached image does not match."""
        facts, size = found.facts, image.size
        raw, width = _RAW[image.mode]
        if facts.kind != image.mode or facts.shape != size or found.num_bytes != size[0] * size[1] * width:
            return None
        make = getattr(self._images.core, "map_buffer", None)
        if make is None or len(self._mapped) >= _MOST_MAPPED:
            return self._images.frombytes(image.mode, size, bytes(found.view()), "raw", raw).im
        core = make(found.pages, size, "raw", HEAD_BYTES, (image.mode, size[0] * width, 1))
        self._mapped[id(core)] = found.pages
        return core

    def _finish(self, image: Any, found: Pixels, core: Any, load: Callable[[Any], Any]) -> Any:
        """Runs the rest of Pillow's `load`: palettes, chunks after the pixels and closing the file."""
        file = image.fp
        image.im = core
        self._here.is_ready = True
        try:
            result = load(image)
        finally:
            self._here.is_ready = False
        if found.facts.position >= 0:
            file.seek(found.facts.position)
        return result

    def _decode(self, image: Any, key: bytes, original: Callable[[Any], Any]) -> Any:
        try:
            memory = self._memory(image, key)
        except Exception as fault:
            self._cache.disable(fault)
            memory = None
        if memory is None:
            return original(image)
        file = None if image._exclusive_fp else image.fp
        core, here = image.im, self._here
        here.is_watching, here.watched = bool(self._files.LOAD_TRUNCATED_IMAGES), None
        try:
            result = original(image)
        finally:
            is_whole = not here.is_watching or (here.watched is not None and here.watched.is_complete)
            here.is_watching, here.watched = False, None
        is_whole = is_whole and not hasattr(image, "_ended")  # Pillow sets it on a truncated JPEG that it completed
        if is_whole and image.im is core:
            try:
                position = file.tell() if file is not None else -1
                source = folder_of(getattr(image, "filename", ""))
                facts = ImageFacts(key, image.mode, tuple(image.size), position, source)
                self._cache.keep(facts, memory.data[:-SPARE_BYTES])
            except Exception as fault:
                self._cache.disable(fault)
        return result

    def _memory(self, image: Any, key: bytes) -> Any:
        """Gives the image our own memory to be decoded into, and returns the memory. Our memory can be written to the
        cache without a copy, unlike Pillow's own memory. Returns None if the image is not to be cached."""
        width, height = image.size
        row_bytes = width * _RAW[image.mode][1]
        make = getattr(self._images.core, "map_buffer", None)
        if make is None or not self._cache.reserve(key, row_bytes * height):
            return None
        memory = np.zeros(row_bytes * height + SPARE_BYTES, dtype=np.uint8)
        image.im = core = make(memory, image.size, "raw", 0, (image.mode, row_bytes, 1))
        self._filled[id(core)] = memory
        return memory

    # --- inside Pillow ------------------------------------------------------------------------------------------------

    def _choosing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _getdecoder(*args: Any, **kwargs: Any) -> Any:
            here = self._here
            if here.is_ready:
                return _Done()
            decoder = original(*args, **kwargs)
            if here.is_watching:
                decoder = here.watched = _Watched(decoder)
            return decoder

        return _getdecoder

    def _exporting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns an export function that first copies an image that uses our memory. Before Pillow 13, Pillow's own
        function fails for such an image."""

        @functools.wraps(original)
        def __arrow_c_array__(image: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            image.load()
            if id(image.im) in self._mapped or id(image.im) in self._filled:
                image.im = image.im.copy()
            return original(image, *args, **kwargs)

        return __arrow_c_array__
