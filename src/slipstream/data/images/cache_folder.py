"""Where decoded images are kept between epochs and runs, what lies there, and how it is cleared. Imports no torch,
reads no pixels, and deletes nothing but entries of ours."""

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

VARIABLE: Final = "SLIPSTREAM_CACHE"
SUFFIX: Final = ".pixels"
UNFINISHED: Final = ".partial"
_IMAGES: Final = "images"
_MOST_READ = 1000  # entries that are asked where they come from
_ABANDONED_S = 60.0  # age of what nobody writes any more: a process of another container cannot be asked
_SWEEP_S = 0.1  # no script waits longer for that; a later one goes on

# --- one entry's head ------------------------------------------------------------------------------------------------

MAGIC: Final = b"slipPX01"
HEAD_BYTES: Final = 512
FRAME: Final = struct.Struct("<8sIIQH")  # magic, checksums of the rest and of the pixels, pixel bytes, facts' length
MOST_FACTS: Final = HEAD_BYTES - FRAME.size


class ImageFacts(msgspec.Struct, frozen=True, array_like=True):
    """What stands before the pixels."""

    key: bytes
    kind: str  # a Pillow mode, or the type of an array's elements
    shape: tuple[int, ...]
    position: int  # where the file object of the script stood after the decoding; -1: it was none of the script's
    source: str  # the folder of the image; "" where it came from memory


_decode = msgspec.msgpack.Decoder(ImageFacts).decode


def read_facts(head: bytes) -> ImageFacts | None:
    """None where this is no head of ours, or a damaged one. The pixels are not looked at."""
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        return None
    _, checksum, _, _, length = FRAME.unpack_from(head)
    if crc32(head[len(MAGIC) + 4 : HEAD_BYTES]) != checksum:
        return None
    try:
        return _decode(head[FRAME.size : FRAME.size + length])
    except msgspec.MsgspecError:
        return None


# --- the folder ------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """$SLIPSTREAM_CACHE, or slipstream in the user's cache."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "slipstream"


def images_folder() -> Path:
    return cache_folder() / _IMAGES


class CacheContents(msgspec.Struct, frozen=True):
    """What lies in the folder."""

    folder: str
    num_images: int = 0
    num_bytes: int = 0
    num_unfinished: int = 0  # left by processes that were ended while they wrote, or being written now
    oldest_s: float = 0.0  # ages
    newest_s: float = 0.0
    free_bytes: int = 0
    sources: list[tuple[str, float]] = []  # folders of the images and their shares, largest first


def survey(folder: Path | None = None) -> CacheContents:
    """Sources are told from the first entries alone: each has to be opened for that."""
    folder = folder or cache_folder()
    now_s = time.time()
    ages: list[float] = []
    num_bytes = num_unfinished = 0
    sources: Counter[str] = Counter()
    for entry in _entries(folder / _IMAGES):
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # cleared by another process meanwhile
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
    """Deletes every entry; returns how many. A training that uses them meanwhile keeps what it has mapped, and decodes
    the rest again."""
    images = (folder or cache_folder()) / _IMAGES
    num_deleted = 0
    for entry in list(_entries(images)):
        os.unlink(entry.path)
        num_deleted += entry.name.endswith(SUFFIX)
    with contextlib.suppress(OSError):  # somebody else's files in it, or a run that goes on filling it
        images.rmdir()
    return num_deleted


def sweep(images: Path) -> int:
    """Deletes what processes left that were ended while they wrote; returns how many."""
    num_deleted = 0
    end_s = time.monotonic() + _SWEEP_S
    for entry in _entries(images):
        if time.monotonic() > end_s:
            break
        writer = entry.name.removesuffix(UNFINISHED).rpartition(".")[2].partition("-")[0]
        if not entry.name.endswith(UNFINISHED) or not writer.isdecimal() or psutil.pid_exists(int(writer)):
            continue
        with contextlib.suppress(OSError):  # cleared by another process meanwhile
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S:
                os.unlink(entry.path)
                num_deleted += 1
    return num_deleted


def free_disk_bytes(folder: Path) -> int:
    """Of the file system that the folder lies on, or would lie on; 0 where that cannot be told."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return 0


def _entries(images: Path) -> Iterator[os.DirEntry[str]]:
    """Ours alone, by their names: a folder that the user named may hold other things."""
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
