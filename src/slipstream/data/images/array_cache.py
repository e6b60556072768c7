"""Caches the results of decoders that are functions from a file or bytes to an array: OpenCV's and torchvision's. The
script gets a new array each time. Only complete JPEG and PNG images and calls with simple arguments are cached. The
decoder handles all other calls."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from slipstream.data.images.cache_folder import ImageFacts
from slipstream.data.images.decode_cache import (
    DecodeCache,
    Identity,
    folder_of,
    identity_of_bytes,
    identity_of_file,
    is_settled,
)
from slipstream.data.images.pixel_store import Pixels, key_of
from slipstream.seams.patching import Patches

_TAIL_BYTES = 64
_PLAIN = (int, str, bool, type(None), Enum)


class ImageSource(msgspec.Struct, frozen=True):
    """The image of one call: the path of a file, or bytes in memory."""

    path: str = ""
    data: Any = None

    def identity(self) -> Identity | None:
        return identity_of_file(os.stat(self.path)) if self.path else identity_of_bytes(self.data)

    def is_whole(self) -> bool:
        """Whether the file is complete, judged by its first and last bytes. These decoders fill in missing data and do
        not report that."""
        if self.path:
            with open(self.path, "rb") as file:
                head = file.read(4)
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                tail = file.read()
        else:
            head, tail = bytes(self.data[:4]), bytes(self.data[-_TAIL_BYTES:])
        is_jpeg = head.startswith(b"\xff\xd8\xff") and b"\xff\xd9" in tail
        return is_jpeg or (head == b"\x89PNG" and b"IEND" in tail)


class ImageKind(msgspec.Struct, frozen=True):
    """How the arrays of a library are stored and rebuilt."""

    source: Callable[[Any], ImageSource | None]
    describe: Callable[[Any], tuple[str, tuple[int, ...]] | None]  # None if the array cannot be rebuilt
    read: Callable[[Any], bytes]
    make: Callable[[Pixels], Any]


class ArrayDecoding:
    def __init__(self, cache: DecodeCache) -> None:
        self._cache = cache
        self._here = threading.local()

    def install_opencv(self, patches: Patches, cv2: Any) -> None:
        for name in ("imread", "imdecode"):
            patches.replace(cv2, name, self._once(getattr(cv2, name), ("OpenCV", cv2.__version__, name), OPENCV))

    def install_torchvision(self, patches: Patches, io: ModuleType) -> None:
        """Patches `io`, which is torchvision.io, and torchvision.io.image, from which torchvision.io imports the
        functions."""
        owners = [io, *([vars(io)["image"]] if isinstance(vars(io).get("image"), ModuleType) else [])]
        version = getattr(sys.modules.get("torchvision"), "__version__", "")
        for name in ("read_image", "decode_image", "decode_jpeg", "decode_png"):
            original = getattr(io, name, None)
            if original is None:
                continue
            decode = self._once(original, ("torchvision", version, name), TORCHVISION)
            for owner in owners:
                if getattr(owner, name, None) is original:
                    patches.replace(owner, name, decode)

    def _once(self, original: Callable[..., Any], library: tuple[str, ...], kind: ImageKind) -> Callable[..., Any]:
        cache, here = self._cache, self._here

        @functools.wraps(original)
        def decode(*args: Any, **kwargs: Any) -> Any:
            if not cache.is_on or getattr(here, "is_inside", False):
                return original(*args, **kwargs)
            try:
                source, key, identity = _read_call(library, kind, args, kwargs)
                found = cache.find(key) if key else None
                if found is not None:
                    return kind.make(found)
            except Exception as fault:
                cache.disable(fault)
                return original(*args, **kwargs)
            here.is_inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                here.is_inside = False
            if source is not None and identity is not None:
                try:
                    self._keep(source, key, identity, kind, result)
                except Exception as fault:
                    cache.disable(fault)
            return result

        return decode

    def _keep(self, source: ImageSource, key: bytes, identity: Identity, kind: ImageKind, result: Any) -> None:
        described = kind.describe(result)
        if described is None or not is_settled(identity) or not source.is_whole() or source.identity() != identity:
            return
        facts = ImageFacts(key, *described, -1, folder_of(source.path))
        if self._cache.reserve(key, result.nbytes):
            self._cache.keep(facts, kind.read(result))


def _read_call(
    library: tuple[str, ...], kind: ImageKind, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ImageSource | None, bytes, Identity | None]:
    """Returns the image of a call, its key and its identity. If the call cannot be cached, the key is empty, and the
    image and the identity are None."""
    options = [*args[1:], *kwargs.values()]
    source = kind.source(args[0]) if args and all(isinstance(option, _PLAIN) for option in options) else None
    try:
        identity = source.identity() if source is not None else None
    except OSError:  # there is no such file; the decoder reports that in its own way
        identity = None
    if identity is None:
        return None, b"", None
    return source, key_of(library, identity, args[1:], sorted(kwargs.items())), identity


def _path_of(given: Any) -> ImageSource | None:
    return ImageSource(path=os.fspath(given)) if isinstance(given, (str, os.PathLike)) and os.fspath(given) else None


# --- OpenCV: NumPy arrays ---------------------------------------------------------------------------------------------


def _opencv_source(given: Any) -> ImageSource | None:
    if type(given) is np.ndarray:
        is_bytes = given.dtype == np.uint8 and given.flags.c_contiguous and given.size > 0
        return ImageSource(data=given.reshape(-1).data) if is_bytes else None
    return _path_of(given)


def _describe_array(array: Any) -> tuple[str, tuple[int, ...]] | None:
    if type(array) is not np.ndarray or not array.flags.c_contiguous or not array.size:
        return None
    return array.dtype.str, array.shape


def _make_array(found: Pixels) -> Any:
    return np.frombuffer(found.view(), dtype=np.dtype(found.facts.kind)).reshape(found.facts.shape).copy()


OPENCV = ImageKind(_opencv_source, _describe_array, lambda array: bytes(array.tobytes()), _make_array)

# --- torchvision: tensors, which are cached in the order that they have in memory -------------------------------------


def _torchvision_source(given: Any) -> ImageSource | None:
    import torch

    if isinstance(given, torch.Tensor):
        is_bytes = given.dtype == torch.uint8 and given.device.type == "cpu" and given.is_contiguous() and given.numel()
        return ImageSource(data=given.numpy().reshape(-1).data) if is_bytes else None
    return _path_of(given)


def _order(tensor: Any) -> list[int]:
    return sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))


def _describe_tensor(tensor: Any) -> tuple[str, tuple[int, ...]] | None:
    import torch

    is_ours = type(tensor) is torch.Tensor and tensor.dtype == torch.uint8 and tensor.device.type == "cpu"
    if not is_ours or not tensor.numel() or not tensor.permute(_order(tensor)).is_contiguous():
        return None
    return "tensor", (*tensor.shape, *tensor.stride())


def _read_tensor(tensor: Any) -> bytes:
    return bytes(tensor.permute(_order(tensor)).numpy().tobytes())


def _make_tensor(found: Pixels) -> Any:
    import torch

    half = len(found.facts.shape) // 2
    values = torch.from_numpy(np.frombuffer(found.view(), dtype=np.uint8).copy())
    return values.as_strided(found.facts.shape[:half], found.facts.shape[half:])


TORCHVISION = ImageKind(_torchvision_source, _describe_tensor, _read_tensor, _make_tensor)
