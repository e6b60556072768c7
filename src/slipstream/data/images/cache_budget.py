"""Decides how many decoded images may be cached. They must fit in a safe part of the free disk and of the free memory,
which holds them while they are used. The sizes of the first images show how many images of the data set fit.

If not all images fit, the key of an image decides whether it is cached. All processes and later runs then choose the
same images. Images are never evicted: in shuffled epochs, eviction would remove most images before their next use."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from slipstream.data.images.cache_folder import free_disk_bytes

MEMORY_SHARE = 0.5  # of the free memory when the script starts
DISK_SHARE = 0.5  # of the free disk at the same time
RESERVE = 0.1  # of the disk's free bytes at the start; this part is never used, even if other programs fill the disk
LEAST_SHARE = 0.2  # minimum share of a data set; caching less is not worth the writing
_NUM_JUDGED = 64  # images from which the mean size is computed
_SLOTS = 512
_CHECK_BYTES = 64 << 20  # maximum that one process writes between two checks of the remaining space
_MOST_PROCESSES = 64  # assumed to write at once; each uses at most its part of the remaining space between two checks


class CacheMeter:
    """Counters that are shared with all processes forked from this one. Each process adds to its own slot, so no count
    is lost."""

    def __init__(self) -> None:
        self._pages = memoryview(mmap.mmap(-1, 3 * 8 * _SLOTS)).cast("Q")

    def add(self, *, kept: int = 0, found: int = 0, num_bytes: int = 0) -> None:
        at = 3 * (os.getpid() % _SLOTS)
        self._pages[at] += kept
        self._pages[at + 1] += found
        self._pages[at + 2] += num_bytes

    @property
    def num_kept(self) -> int:
        return sum(self._pages[0::3])

    @property
    def num_found(self) -> int:
        return sum(self._pages[1::3])

    @property
    def kept_bytes(self) -> int:
        return sum(self._pages[2::3])


class ExpectedBytes(NamedTuple):
    """The images that are expected from one data set."""

    num_samples: int
    source: int  # the id of the data set that its samples come from
    num_there: int  # the number of samples of the data set `source`


class CacheBudget:
    def __init__(self, folder: Path, memory_bytes: int, tell: Callable[[str], None]) -> None:
        disk_bytes = free_disk_bytes(folder)
        self.room_bytes = int(min(MEMORY_SHARE * memory_bytes, DISK_SHARE * disk_bytes))
        self.meter = CacheMeter()
        self._folder = folder
        self._reserve_bytes = RESERVE * disk_bytes
        self._tell = tell
        self._expected: dict[int, ExpectedBytes] = {}  # by the id of the data set
        self._num_seen = self._seen_bytes = 0
        self._is_closed = False
        self._sure_bytes = 0

    def expect(self, dataset: int, num_samples: int, source: int = 0, num_there: int = 0) -> bool:
        """Registers `num_samples` images of the data set with the id `dataset`. If the data set is a part of another
        one, `source` is the id of the other one and `num_there` its number of samples. Returns whether the data set is
        new."""
        is_new = dataset not in self._expected
        self._expected[dataset] = ExpectedBytes(num_samples, source or dataset, num_there or num_samples)
        return is_new

    def forget(self, dataset: int) -> None:
        """Removes a data set that no longer exists."""
        self._expected.pop(dataset, None)

    def num_expected(self) -> int:
        """Returns the number of different images. Parts of one source may overlap, as folds do. Together they have at
        most as many images as the source."""
        sums: dict[int, tuple[int, int]] = {}
        for one in list(self._expected.values()):  # a copy, because `forget` may be called meanwhile
            so_far, _ = sums.get(one.source, (0, 0))
            sums[one.source] = so_far + one.num_samples, one.num_there
        return sum(min(wanted, num_there) for wanted, num_there in sums.values())

    def share(self) -> float:
        """Returns the share of the expected images that fits, according to the sizes seen so far. Returns 1.0 if all
        fit."""
        expected = self.num_expected() * self._mean_bytes()
        return self.room_bytes / expected if expected > self.room_bytes else 1.0

    def may_keep(self, key: bytes, num_bytes: int) -> bool:
        if self._is_closed:
            return False
        if self._num_seen < _NUM_JUDGED:
            self._num_seen += 1
            self._seen_bytes += num_bytes
        share = self.share()
        if share < LEAST_SHARE:
            self.close(
                f"the decoded images would take {self.num_expected() * self._mean_bytes() / 1e9:,.0f} GB, and only "
                f"{self.room_bytes / 1e9:,.1f} GB may be used (half of the free memory, half of the free disk)"
            )
            return False
        if int.from_bytes(key[:4], "big") >= share * 2**32:
            return False
        if num_bytes > self._sure_bytes and not self._has_space(num_bytes):
            return False
        self._sure_bytes -= num_bytes
        return True

    def _has_space(self, num_bytes: int) -> bool:
        """Checks the counters of all processes and the disk. Returns whether there is space for the image. Sets how
        many bytes this process may write before it checks again."""
        room = self.room_bytes - self.meter.kept_bytes
        disk = free_disk_bytes(self._folder) - self._reserve_bytes
        if num_bytes > room:
            self.close(
                f"the cache limit of {self.room_bytes / 1e9:,.1f} GB is reached: other images are decoded as before"
            )
        elif num_bytes > disk:
            self.close("the disk is nearly full: no more decoded images are cached")
        self._sure_bytes = max(num_bytes, min(_CHECK_BYTES, int(min(room, disk)) // _MOST_PROCESSES))
        return not self._is_closed

    def close(self, why: str) -> None:
        """Caches no more images in this process. Cached images stay in use."""
        if not self._is_closed:
            self._is_closed = True
            self._tell(why)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _mean_bytes(self) -> float:
        return self._seen_bytes / max(1, self._num_seen)
