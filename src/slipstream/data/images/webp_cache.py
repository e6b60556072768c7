"""Caches Pillow's decoding of WebP. Pillow's plugin takes frames from its own decoder object before it calls
`ImageFile.load`. For a cached image, the decoder object is replaced during one load. Animations are not cached."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from slipstream.data.images.cache_folder import ImageFacts
from slipstream.data.images.decode_cache import DecodeCache, folder_of, identity_of, is_settled
from slipstream.data.images.pixel_store import key_of
from slipstream.seams.patching import Patches

_WIDTHS = {"RGBX": 4, "RGBA": 4}


class _Frames:
    """Replaces the decoder of one image. It returns the cached frame, or records the frame that the decoder returns."""

    def __init__(self, decoder: Any, frame: tuple[bytes, int] | None) -> None:
        self._decoder = decoder
        self.frame = frame
        self._is_kept = frame is not None

    def get_next(self) -> Any:
        if not self._is_kept:
            self.frame = self._decoder.get_next()
        return self.frame

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)


class WebPDecoding:
    def __init__(self, cache: DecodeCache) -> None:
        self._cache = cache

    def install(self, patches: Patches, plugin: ModuleType) -> None:
        """Patches `plugin`, which is PIL.WebPImagePlugin."""
        files = vars(plugin)["WebPImageFile"]
        decoder: Any = vars(plugin).get("_webp")
        self._version = (vars(plugin)["Image"].__version__, getattr(decoder, "webpdecoder_version", ""))
        patches.replace(files, "load", self._loading(files.load))

    def _loading(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        cache = self._cache

        @functools.wraps(original)
        def load(image: Any) -> Any:
            try:
                facts = self._facts_of(image) if cache.is_on else None
                found = cache.find(facts.key) if facts is not None else None
                frame = (bytes(found.view()), found.facts.position) if found is not None else None
            except Exception as fault:
                cache.disable(fault)
                return original(image)
            if facts is None:
                return original(image)
            decoder = image._decoder
            image._decoder = frames = _Frames(decoder, frame)
            try:
                result = original(image)
            finally:
                image._decoder = decoder
            if frame is None and frames.frame is not None:
                self._keep(facts, frames.frame)
            return result

        return load

    def _facts_of(self, image: Any) -> ImageFacts | None:
        """Returns the facts of an image that is about to be decoded, or None if the image cannot be cached."""
        known = vars(image)
        is_new = known.get("_im", known.get("im")) is None and "duration" not in image.info
        if not is_new or image.n_frames != 1 or image.rawmode not in _WIDTHS or not hasattr(image, "_decoder"):
            return None
        identity = identity_of(image.fp)
        if identity is None or not is_settled(identity):
            return None
        key = key_of("WebP", self._version, identity, image.rawmode, image.size)
        return ImageFacts(key, image.rawmode, tuple(image.size), 0, folder_of(image.filename))

    def _keep(self, facts: ImageFacts, frame: tuple[bytes, int]) -> None:
        pixels, timestamp = frame
        if len(pixels) != facts.shape[0] * facts.shape[1] * _WIDTHS[facts.kind]:
            return
        try:
            facts = msgspec.structs.replace(facts, position=timestamp)
            if self._cache.reserve(facts.key, len(pixels)):
                self._cache.keep(facts, pixels)
        except Exception as fault:
            self._cache.disable(fault)
