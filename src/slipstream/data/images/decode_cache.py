"""The cache of decoded images that all decoders share. An image is looked up in the cache, and is added when it was
decoded completely. After an error in our code, the cache is disabled, and the script decodes as before. After an error
of the disk, no more images are added. The error is reported once."""

from __future__ import annotations

import errno
import io
import os
import stat
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from slipstream.data.images.cache_budget import CacheBudget
from slipstream.data.images.cache_folder import ImageFacts
from slipstream.data.images.pixel_store import MOST_BYTES, Pixels, PixelStore

Identity = tuple[Any, ...]
SETTLED_NS = 2_000_000_000  # a file that changed more recently may change again without a new time stamp
SLOW_S = 0.1  # writing pauses if one image takes longer than this, because the disk is too slow
PATIENCE = 20.0  # length of the pause in multiples of the write; a slow disk then costs at most a twentieth of the time
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DecodeCache:
    def __init__(
        self,
        store: PixelStore,
        allowance: CacheBudget,
        tell: Callable[[str], None],
        on_use: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self.allowance = allowance
        self._tell = tell
        self._on_use = on_use  # called when an image was stored or found
        self.is_on = True
        self._resume_s = 0.0

    def find(self, key: bytes) -> Pixels | None:
        found = self._store.read(key)
        if found is not None:
            self.allowance.meter.add(found=1)
            self._on_use()
        return found

    def reserve(self, key: bytes, num_bytes: int) -> bool:
        """Reserves room for an image. Returns whether `keep` may store the image. Call it exactly once per image."""
        is_time = num_bytes <= MOST_BYTES and time.monotonic() >= self._resume_s
        return is_time and self.allowance.may_keep(key, num_bytes)

    def keep(self, facts: ImageFacts, pixels: Any) -> None:
        start_s = time.monotonic()
        try:
            written = self._store.write(facts, memoryview(pixels))
        except OSError as fault:
            self.allowance.close(_cannot_write(fault, self._store.folder))
            return
        self.allowance.meter.add(kept=1, num_bytes=written)
        self._on_use()
        took_s = time.monotonic() - start_s
        if took_s > SLOW_S:
            # At most one second counts, because a longer time most likely includes a pause of this trial in a race.
            self._resume_s = start_s + PATIENCE * min(took_s, 1.0)

    def disable(self, fault: BaseException) -> None:
        if self.is_on:
            self.is_on = False
            self._tell(f"images are decoded as before: {type(fault).__name__}: {fault}")


def _cannot_write(fault: OSError, folder: str) -> str:
    why = "the disk is full" if fault.errno in _FULL else (fault.strerror or str(fault))
    return f"no more decoded images are cached in {folder}: {why}"


# --- identities of images --------------------------------------------------------------------------------------------


def identity_of(file: Any) -> Identity | None:
    """Returns the identity of an open file or of bytes in memory. Returns None for any other object, because its
    contents may change without notice."""
    if file is None or getattr(file, "closed", False):
        return None
    if type(file) is io.BufferedReader and type(file.raw) is io.FileIO:
        return identity_of_file(os.fstat(file.fileno()))
    if type(file) is io.FileIO:
        return identity_of_file(os.fstat(file.fileno()))
    if type(file) is io.BytesIO:
        with file.getbuffer() as data:
            return identity_of_bytes(data)
    return None


def identity_of_file(facts: os.stat_result) -> Identity | None:
    """Returns the identity of a regular file, or None for any other file. The identity includes the change time, which
    cannot be set back as the modification time can. It does not include the device number, which is different in a
    trial's overlay. Files of two devices that agree in everything else, down to the nanoseconds of the change time, are
    not expected."""
    if not stat.S_ISREG(facts.st_mode):
        return None
    return "file", facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def identity_of_bytes(data: Any) -> Identity:
    return "bytes", len(data), blake2b(data, digest_size=16).digest()


def is_settled(identity: Identity) -> bool:
    return identity[0] == "bytes" or bool(time.time_ns() - max(identity[3], identity[4]) >= SETTLED_NS)


def folder_of(name: Any) -> str:
    """Returns the folder of an image, for display."""
    if not isinstance(name, (str, bytes, os.PathLike)) or not name:
        return ""
    return os.path.dirname(os.path.abspath(os.fsdecode(name)))
