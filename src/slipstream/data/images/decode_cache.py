"""What all decoders share: an image is looked for among the kept ones, and kept when it was decoded whole. A fault of
ours, or of the disk, ends that and is said once; the script decodes as before."""

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
SETTLED_NS = 2_000_000_000  # a file changed less than this ago may change once more without its times telling
SLOW_S = 0.1  # to write one image: the disk cannot follow. The next ones wait for a later epoch,
PATIENCE = 20.0  # for so many times as long, so that a slow disk costs a training a twentieth
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
        self._on_use = on_use  # an image was kept, or found
        self.is_on = True
        self._resume_s = 0.0

    def find(self, key: bytes) -> Pixels | None:
        found = self._store.read(key)
        if found is not None:
            self.allowance.meter.add(found=1)
            self._on_use()
        return found

    def has_room(self, key: bytes, num_bytes: int) -> bool:
        """Asked once for an image, before it is kept."""
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
            self._resume_s = start_s + PATIENCE * min(took_s, 1.0)  # more than that: we were held in a race

    def step_aside(self, fault: BaseException) -> None:
        if self.is_on:
            self.is_on = False
            self._tell(f"images are decoded as before: {type(fault).__name__}: {fault}")


def _cannot_write(fault: OSError, folder: str) -> str:
    why = "the disk is full" if fault.errno in _FULL else (fault.strerror or str(fault))
    return f"no more decoded images are kept in {folder}: {why}"


# --- what tells one image from all others ----------------------------------------------------------------------------


def identity_of(file: Any) -> Identity | None:
    """Of an open file, or of bytes in memory; None for everything else, whose contents nothing vouches for."""
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
    """The change time cannot be set back, as the modification time can: it also vouches for what the device's number
    would, which is another one in a rider's overlay."""
    if not stat.S_ISREG(facts.st_mode):
        return None
    return "file", facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def identity_of_bytes(data: Any) -> Identity:
    return "bytes", len(data), blake2b(data, digest_size=16).digest()


def is_settled(identity: Identity) -> bool:
    return identity[0] == "bytes" or bool(time.time_ns() - max(identity[3], identity[4]) >= SETTLED_NS)


def folder_of(name: Any) -> str:
    """Where an image lies, for people."""
    if not isinstance(name, (str, bytes, os.PathLike)) or not name:
        return ""
    return os.path.dirname(os.path.abspath(os.fsdecode(name)))
