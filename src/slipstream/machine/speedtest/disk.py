"""Measures reading of files: one long file and many short files, from the disk and from memory. A result counts as cold
only if the system's own counter shows that most bytes came from the disk and not from the page cache."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slipstream.records import Reading

BLOCK: Final = 1 << 20
SMALL: Final = 110_000  # bytes of a short file, as a typical photograph in a data set has
_COLD_SHARE: Final = 0.8  # share of a file that must come from the disk for a cold reading


class DiskError(Exception):
    """The disk could not be measured. The message is a sentence for the user."""


def read_disk(folder: Path, num_bytes: int, num_files: int, tell: Callable[[str], None]) -> list[Reading]:
    """Writes test files to a temporary folder, reads them, and removes them. `tell` gets a sentence for each
    measurement that was not possible."""
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < 4 * num_bytes:
        raise DiskError(f"the disk of {folder} has too little free space for a test file of {num_bytes >> 20} MB")
    with tempfile.TemporaryDirectory(prefix="speedtest-", dir=folder) as name:
        return [*_long_file(Path(name), num_bytes, tell), *_small_files(Path(name), num_files, tell)]


def _long_file(folder: Path, num_bytes: int, tell: Callable[[str], None]) -> list[Reading]:
    path = folder / "long"
    _write(path, num_bytes)
    detail = f"one file of {num_bytes >> 20} MB"
    fetched, seconds = _fetched_while(lambda: _read(path))
    readings = []
    if _is_cold(fetched, num_bytes, tell):
        readings.append(Reading("disk_cold", num_bytes / seconds / 1e6, "MB/s", detail=detail))
    seconds = min(_timed(lambda: _read(path)) for _ in range(2))
    return [*readings, Reading("disk_warm", num_bytes / seconds / 1e6, "MB/s", detail=detail)]


def _small_files(folder: Path, num_files: int, tell: Callable[[str], None]) -> list[Reading]:
    paths = [folder / f"{number}" for number in range(num_files)]
    for path in paths:
        _write(path, SMALL)

    def read_all() -> None:
        for path in paths:
            path.read_bytes()

    fetched, seconds = _fetched_while(read_all)
    if not _is_cold(fetched, num_files * SMALL, lambda reason: None):
        return []
    return [
        Reading("disk_files", num_files / seconds, "files/s", detail=f"{num_files} of {SMALL // 1000} kB, one by one")
    ]


def _write(path: Path, num_bytes: int) -> None:
    """Writes a file to the disk and drops it from the page cache. The bytes are random, so that no file system can
    compress them."""
    block = os.urandom(min(BLOCK, num_bytes))
    with path.open("wb", buffering=0) as file:
        for _ in range(num_bytes // len(block)):
            file.write(block)
        file.write(block[: num_bytes % len(block)])
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path) -> None:
    buffer = bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _fetched_while(work: Callable[[], None]) -> tuple[int | None, float]:
    before = _fetched()
    seconds = _timed(work)
    after = _fetched()
    return (after - before if before is not None and after is not None else None), seconds


def _fetched() -> int | None:
    """Returns the bytes that this process has read from storage, or None where the system does not count them."""
    try:
        for line in Path("/proc/self/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    except OSError:
        pass
    return None


def _is_cold(fetched: int | None, num_bytes: int, tell: Callable[[str], None]) -> bool:
    if fetched is None:
        tell("Cold reading was not measured: this system does not report which bytes came from the disk.")
        return False
    if fetched < _COLD_SHARE * num_bytes:
        tell("Cold reading was not measured: the system kept the file in memory, although it was asked to drop it.")
        return False
    return True
