"""Decides when the result of a faster implementation is compared with the original, for each kind of image. The first
images and later one in many are processed in both ways. One difference disables the faster implementation permanently.
The state is shared with all forked processes."""

from __future__ import annotations

import mmap

FIRST = 8  # images of a kind that are always compared, in all processes together
EVERY = 256  # afterwards one image in this number is compared, in each process
MOST_FAULTS = 3  # files on which the faster implementation failed, after which the kind counts as unsupported
_LOST_AT = 2048  # offset in the page of one byte per kind that marks a difference; no counter overwrites it


class SpotCheck:
    """The state of each kind, by its number."""

    def __init__(self) -> None:
        self._proved = mmap.mmap(-1, mmap.PAGESIZE)  # anonymous and shared: counter and difference mark of each kind
        self._num_images: dict[int, int] = {}
        self._num_faults: dict[int, int] = {}

    def has(self, kind: int) -> bool:
        """Whether the faster implementation may be used for this kind."""
        return not self._proved[_LOST_AT + kind] and self._num_faults.get(kind, 0) < MOST_FAULTS

    def wants_proof(self, kind: int) -> bool:
        """Count an image. Returns whether this one is to be compared."""
        number = self._num_images[kind] = self._num_images.get(kind, 0) + 1
        return self._proved[kind] < FIRST or number % EVERY == 0

    def note_proof(self, kind: int) -> None:
        if self._proved[kind] < FIRST:
            self._proved[kind] += 1

    def blame(self, kind: int) -> None:
        """Count a file on which the faster implementation failed. It may be a broken file or an unsupported kind."""
        self._num_faults[kind] = self._num_faults.get(kind, 0) + 1

    def withdraw(self, kind: int) -> None:
        """Disable the faster implementation for this kind, because a result differed."""
        self._proved[_LOST_AT + kind] = 1
