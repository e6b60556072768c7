"""Decoded pixels on disk, one file per image. A file is written completely or not at all. When a file is read, it is
mapped privately, so changes by the script never reach the file. A file that is damaged or was written by another user
is ignored. Files are never evicted. Only unfinished files of killed processes are deleted.

`CheckedEntries` remembers which files were found to be undamaged. All processes that are forked from the same process
share it, so workers that start in every epoch need not check the files again. It may forget a file, but it never
remembers one that was not checked."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
import threading
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from slipstream.data.images.cache_folder import (
    FRAME,
    HEAD_BYTES,
    MAGIC,
    MOST_FACTS,
    SUFFIX,
    UNFINISHED,
    ImageFacts,
    read_facts,
    sweep,
)
from slipstream.store.safe_files import NO_BLOCK, NO_FOLLOW, is_private

_SLOTS = 1 << 20  # of eight bytes each; a page of slots takes memory only once it is written
_WHOLE = (1 << 64) - 1


class CheckedEntries:
    def __init__(self) -> None:
        self._stamps = memoryview(mmap.mmap(-1, 8 * _SLOTS)).cast("Q")  # anonymous and shared with forks

    def has(self, stamp: int) -> bool:
        """Whether a stamp was added. A stamp identifies an image and the state of its file."""
        stamp = stamp & _WHOLE or 1  # 0 marks an empty slot
        return self._stamps[stamp % _SLOTS] == stamp

    def add(self, stamp: int) -> None:
        stamp = stamp & _WHOLE or 1
        self._stamps[stamp % _SLOTS] = stamp


MOST_BYTES = 1 << 30  # maximum size of one image
# Before Python 3.13 a mapping holds a file descriptor as long as the mapping lives. A process may have about a thousand
# descriptors.
HOLDS_DESCRIPTOR = sys.version_info < (3, 13) or os.name != "posix"
_UNTRACKED: dict[str, Any] = {} if HOLDS_DESCRIPTOR else {"trackfd": False}
SPARE_BYTES = 64
_ROW = 1024  # bytes that are summed together for the checksum; the file is padded to whole rows


def key_of(*parts: Any) -> bytes:
    """Returns the key for these plain values in this order."""
    return blake2b(repr(parts).encode(), digest_size=16).digest()


class Pixels:
    """One image from disk. The mapping is private, so writing to it does not change the file."""

    __slots__ = ("facts", "num_bytes", "pages")

    def __init__(self, facts: ImageFacts, pages: mmap.mmap, num_bytes: int) -> None:
        self.facts = facts
        self.pages = pages
        self.num_bytes = num_bytes

    def view(self) -> memoryview:
        return memoryview(self.pages)[HEAD_BYTES : HEAD_BYTES + self.num_bytes]


class PixelStore:
    """Reads and writes the files. The head and the length of a file are checked at every read. The pixels are checked
    at the first read in this process and the processes forked from it, unless one of these processes wrote the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self._checked = CheckedEntries()
        with contextlib.suppress(OSError):
            sweep(folder)

    def read(self, key: bytes) -> Pixels | None:
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_BLOCK)
        except OSError:
            return None
        try:
            facts = os.fstat(descriptor)
            if facts.st_size < HEAD_BYTES or not stat.S_ISREG(facts.st_mode) or not is_private(facts):
                return None
            # Reading the head from the mapping would cost a page fault, which takes ten times longer.
            head = os.read(descriptor, HEAD_BYTES)
            pages = mmap.mmap(descriptor, facts.st_size, access=mmap.ACCESS_COPY, **_UNTRACKED)
        except (OSError, ValueError):  # for example, no address space is left
            return None
        finally:
            os.close(descriptor)
        return self._accept(key, head, pages, _stamp(key, facts))

    def _accept(self, key: bytes, head: bytes, pages: mmap.mmap, stamp: int) -> Pixels | None:
        known = read_facts(head)
        if known is None or known.key != key:
            return None
        _, _, checksum, num_bytes, _ = FRAME.unpack_from(head)
        if len(pages) != HEAD_BYTES + _padded(num_bytes):
            return None
        if not self._checked.has(stamp):
            if _checksum(memoryview(pages)[HEAD_BYTES:]) != checksum:
                return None
            self._checked.add(stamp)
        return Pixels(known, pages, num_bytes)

    def write(self, facts: ImageFacts, pixels: memoryview) -> int:
        """Writes a file and returns its size. If it raises OSError, it leaves no file behind."""
        path = self._path(facts.key)
        partial = f"{path}.{os.getpid()}-{threading.get_ident()}{UNFINISHED}"
        padding = bytes(_padded(len(pixels)) - len(pixels))
        rows = len(pixels) // _ROW * _ROW
        head = _head(facts, len(pixels), _checksum(pixels[:rows], bytes(pixels[rows:]) + padding))
        try:
            try:
                written = _write_whole(partial, [head, pixels, padding])
            except FileNotFoundError:
                os.makedirs(self.folder, mode=0o700, exist_ok=True)
                written = _write_whole(partial, [head, pixels, padding])
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise
        self._checked.add(_stamp(facts.key, written))
        return written.st_size

    def _path(self, key: bytes) -> str:
        """Returns the path of an entry. All entries are in one folder, because creating a file in a new folder takes
        ten times as long. File systems find a name in a large folder by its hash."""
        return f"{self.folder}/{key.hex()}{SUFFIX}"


def _stamp(key: bytes, facts: os.stat_result) -> int:
    return hash((key, facts.st_ino, facts.st_mtime_ns))


def _write_whole(path: str, parts: list[Any]) -> os.stat_result:
    """Writes all parts and returns the facts of the file. One system call is used if possible, because three calls take
    a quarter more time."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        written = os.writev(descriptor, parts) if hasattr(os, "writev") else os.write(descriptor, b"".join(parts))
        facts = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if written != sum(map(len, parts)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return facts


def _padded(num_bytes: int) -> int:
    """Returns the size in whole rows. It includes some spare bytes, because vectorised code may read slightly beyond
    the last pixel."""
    return -(-(num_bytes + SPARE_BYTES) // _ROW) * _ROW


def _head(facts: ImageFacts, num_bytes: int, checksum: int) -> bytes:
    text = msgspec.msgpack.encode(facts)
    if len(text) > MOST_FACTS:  # a very long path is left out, because only `slipstream cache` displays it
        text = msgspec.msgpack.encode(msgspec.structs.replace(facts, source=""))
    rest = FRAME.pack(MAGIC, 0, checksum, num_bytes, len(text))[len(MAGIC) + 4 :] + text
    rest = rest.ljust(HEAD_BYTES - len(MAGIC) - 4, b"\0")
    return MAGIC + crc32(rest).to_bytes(4, "little") + rest


def _checksum(*parts: Any) -> int:
    """Returns a checksum of whole rows: the CRC of the sums of the rows. It is as fast as reading the memory, while a
    CRC of all bytes would take half as long as decoding. It detects every change of a single word of eight bytes. It
    misses changes of several words in a row that leave the row's sum the same."""
    checksum = 0
    for part in parts:
        sums = np.frombuffer(part, dtype=np.uint64).reshape(-1, _ROW // 8).sum(axis=1, dtype=np.uint64)
        checksum = crc32(sums.tobytes(), checksum)
    return checksum
