"""How many decoded images may be kept: a safe part of free memory, which holds them while they are used, and of free
disk, judged for the whole data set before it is filled. Which ones is told by their keys, so that all processes and
later runs choose alike and nothing is ever evicted: a shuffled epoch would come for it again too late."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from slipstream.data.images.cache_folder import free_disk_bytes

MEMORY_SHARE = 0.5  # of what is free when the script starts
DISK_SHARE = 0.5
RESERVE = 0.1  # of the disk's free bytes at the start: never touched, whoever else fills the disk meanwhile
LEAST_SHARE = 0.2  # of a data set: below that, keeping some is not worth the writing
_NUM_JUDGED = 64  # images that the mean size is taken from
_SLOTS = 512
_LOOK_BYTES = 64 << 20  # kept by one process between two looks at what is left, where there is much,
_MOST_PROCESSES = 64  # that may do so at once


class CacheMeter:
    """Counts of all processes that are forked from this one. Each adds to a slot of its own, so that none is lost."""

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
    """What is to come from one data set."""

    num_samples: int
    source: int  # the data set that its samples come from
    num_there: int  # in that one


class CacheBudget:
    def __init__(self, folder: Path, memory_bytes: int, tell: Callable[[str], None]) -> None:
        disk_bytes = free_disk_bytes(folder)
        self.room_bytes = int(min(MEMORY_SHARE * memory_bytes, DISK_SHARE * disk_bytes))
        self.meter = CacheMeter()
        self._folder = folder
        self._reserve_bytes = RESERVE * disk_bytes
        self._tell = tell
        self._expected: dict[int, ExpectedBytes] = {}  # by dataset
        self._num_seen = self._seen_bytes = 0
        self._is_closed = False
        self._sure_bytes = 0

    def expect(self, dataset: int, num_samples: int, source: int = 0, num_there: int = 0) -> bool:
        """A data set, by its identity, and how many images are to come from it; where it is a part of another, of which
        one, and how many that has. Whether it is a new one."""
        is_new = dataset not in self._expected
        self._expected[dataset] = ExpectedBytes(num_samples, source or dataset, num_there or num_samples)
        return is_new

    def forget(self, dataset: int) -> None:
        """It is gone: no more images are to come from it."""
        self._expected.pop(dataset, None)

    def num_expected(self) -> int:
        """Parts of one source may overlap, as folds do: all together they have no more than it has."""
        sums: dict[int, tuple[int, int]] = {}
        for one in list(self._expected.values()):  # a list: one may be forgotten meanwhile
            so_far, _ = sums.get(one.source, (0, 0))
            sums[one.source] = so_far + one.num_samples, one.num_there
        return sum(min(wanted, num_there) for wanted, num_there in sums.values())

    def share(self) -> float:
        """Of the expected images, as far as their size is known. 1.0: all of them."""
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
                f"decoded, the images would take {self.num_expected() * self._mean_bytes() / 1e9:,.0f} GB, and "
                f"{self.room_bytes / 1e9:,.1f} GB may be used (half of the free memory, half of the free disk)"
            )
            return False
        if int.from_bytes(key[:4], "big") >= share * 2**32:
            return False
        if num_bytes > self._sure_bytes and not self._is_room(num_bytes):
            return False
        self._sure_bytes -= num_bytes
        return True

    def _is_room(self, num_bytes: int) -> bool:
        """Asks all processes' counts and the disk, and for how many bytes nobody need ask again."""
        room = self.room_bytes - self.meter.kept_bytes
        disk = free_disk_bytes(self._folder) - self._reserve_bytes
        if num_bytes > room:
            self.close(f"{self.room_bytes / 1e9:,.1f} GB are full: images beyond that are decoded as before")
        elif num_bytes > disk:
            self.close("the disk is nearly full: no more decoded images are kept")
        self._sure_bytes = max(num_bytes, min(_LOOK_BYTES, int(min(room, disk)) // _MOST_PROCESSES))
        return not self._is_closed

    def close(self, why: str) -> None:
        """No more is kept in this process. What there is stays in use."""
        if not self._is_closed:
            self._is_closed = True
            self._tell(why)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _mean_bytes(self) -> float:
        return self._seen_bytes / max(1, self._num_seen)
