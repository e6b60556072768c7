"""The folder of decoded images that are cached between epochs and runs: where it is, what it contains and how it is
cleared. This module does not import torch and does not read pixels. It deletes only files of this cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
import psutil

from slipstream.store.cache_folder import cache_folder

SUFFIX: Final = ".pixels"
UNFINISHED: Final = ".partial"
_IMAGES: Final = "images"
_MOST_READ = 1000  # maximum number of entries that are opened to read their source
_ABANDONED_S = 60.0  # age after which an unfinished file counts as abandoned; its writer may be in another container
_SWEEP_S = 0.1  # time limit of a sweep, for which the script waits; a later run continues the sweep

# --- one entry's head ------------------------------------------------------------------------------------------------

MAGIC: Final = b"slipPX01"
HEAD_BYTES: Final = 512
FRAME: Final = struct.Struct("<8sIIQH")  # magic, checksums of the rest and of the pixels, pixel bytes, facts' length
MOST_FACTS: Final = HEAD_BYTES - FRAME.size


class ImageFacts(msgspec.Struct, frozen=True, array_like=True):
    """The facts that are stored in front of the pixels."""

    key: bytes
    kind: str  # a Pillow mode, or the type of an array's elements
    shape: tuple[int, ...]
    position: int  # position of the script's file object after decoding; -1: the file object was not the script's
    source: str  # the folder of the image; "" if the image came from memory


_decode = msgspec.msgpack.Decoder(ImageFacts).decode


def read_facts(head: bytes) -> ImageFacts | None:
    """Returns the facts of an entry, or None if the head is damaged or not one of this cache. The pixels are not
    checked."""
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        return None
    _, checksum, _, _, length = FRAME.unpack_from(head)
    if crc32(head[len(MAGIC) + 4 : HEAD_BYTES]) != checksum:
        return None
    try:
        return _decode(head[FRAME.size : FRAME.size + length])
    except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: a text that is not UTF-8
        return None


# --- the folder ------------------------------------------------------------------------------------------------------


def images_folder() -> Path:
    return cache_folder() / _IMAGES


class CacheContents(msgspec.Struct, frozen=True):
    """The contents of the folder."""

    folder: str
    num_images: int = 0
    num_bytes: int = 0
    num_unfinished: int = 0  # being written now, or left by processes that ended while they wrote
    oldest_s: float = 0.0  # age of the oldest entry
    newest_s: float = 0.0  # age of the newest entry
    free_bytes: int = 0
    sources: list[tuple[str, float]] = []  # folders of the images and their shares, largest first


def survey(folder: Path | None = None) -> CacheContents:
    """Describes the contents of the folder. The sources come from the first entries only, because each of these entries
    must be opened."""
    folder = folder or cache_folder()
    now_s = time.time()
    ages: list[float] = []
    num_bytes = num_unfinished = 0
    sources: Counter[str] = Counter()
    for entry in _entries(folder / _IMAGES):
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # another process has deleted the entry
        num_bytes += facts.st_size
        if entry.name.endswith(UNFINISHED):
            num_unfinished += 1
            continue
        ages.append(max(0.0, now_s - facts.st_mtime))
        if len(ages) <= _MOST_READ:
            sources[_source(entry.path)] += 1
    total = sum(sources.values())
    return CacheContents(
        folder=str(folder),
        num_images=len(ages),
        num_bytes=num_bytes,
        num_unfinished=num_unfinished,
        oldest_s=max(ages, default=0.0),
        newest_s=min(ages, default=0.0),
        free_bytes=free_disk_bytes(folder),
        sources=[(source, count / total) for source, count in sources.most_common()],
    )


def clear(folder: Path | None = None) -> int:
    """Deletes every entry and returns how many were deleted. A training that is using the cache keeps the entries that
    it has mapped and decodes the other images again."""
    images = (folder or cache_folder()) / _IMAGES
    num_deleted = 0
    for entry in list(_entries(images)):
        os.unlink(entry.path)
        num_deleted += entry.name.endswith(SUFFIX)
    with contextlib.suppress(OSError):  # the folder holds other files, or a run is still writing to it
        images.rmdir()
    return num_deleted


def sweep(images: Path) -> int:
    """Deletes unfinished files of processes that ended while they wrote, and returns how many were deleted."""
    num_deleted = 0
    end_s = time.monotonic() + _SWEEP_S
    for entry in _entries(images):
        if time.monotonic() > end_s:
            break
        writer = entry.name.removesuffix(UNFINISHED).rpartition(".")[2].partition("-")[0]
        if not entry.name.endswith(UNFINISHED) or not writer.isdecimal() or psutil.pid_exists(int(writer)):
            continue
        with contextlib.suppress(OSError):  # another process has deleted the entry
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S:
                os.unlink(entry.path)
                num_deleted += 1
    return num_deleted


def free_disk_bytes(folder: Path) -> int:
    """Returns the free space of the file system that the folder is on or would be on. Returns 0 if it is unknown."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return 0


def _entries(images: Path) -> Iterator[os.DirEntry[str]]:
    """Yields the entries of this cache. They are recognised by their names, because a folder that the user chose may
    hold other files."""
    if images.is_dir():
        with os.scandir(images) as found:
            for entry in found:
                if entry.name.endswith((SUFFIX, UNFINISHED)) and entry.is_file(follow_symlinks=False):
                    yield entry


def _source(path: str) -> str:
    try:
        with open(path, "rb") as file:
            facts = read_facts(file.read(HEAD_BYTES))
    except OSError:
        return ""
    return facts.source if facts is not None else ""
