"""Decides when the result of a faster implementation is compared with that of the original. The decision is made for
each kind of image. The first images of a kind, and later one in 256, are processed in both ways. One difference
disables the faster implementation for the kind permanently. Forked processes share the results of the comparisons."""

from __future__ import annotations

import mmap

FIRST = 8  # images of a kind that are always compared, in all processes together
EVERY = 256  # afterwards one image in this number is compared, in each process
MOST_FAULTS = 3  # after this many files on which the faster implementation failed, the kind counts as unsupported
_LOST_AT = 2048  # offset in the page of one byte per kind that marks a difference; no counter overwrites it


class SpotCheck:
    """The state of each kind. Kinds are numbers."""

    def __init__(self) -> None:
        self._proved = mmap.mmap(-1, mmap.PAGESIZE)  # anonymous and shared: counter and difference mark of each kind
        self._num_images: dict[int, int] = {}
        self._num_faults: dict[int, int] = {}

    def has(self, kind: int) -> bool:
        """Whether the faster implementation may be used for this kind."""
        return not self._proved[_LOST_AT + kind] and self._num_faults.get(kind, 0) < MOST_FAULTS

    def wants_proof(self, kind: int) -> bool:
        """Counts an image. Returns whether its result is to be compared."""
        number = self._num_images[kind] = self._num_images.get(kind, 0) + 1
        return self._proved[kind] < FIRST or number % EVERY == 0

    def note_proof(self, kind: int) -> None:
        if self._proved[kind] < FIRST:
            self._proved[kind] += 1

    def blame(self, kind: int) -> None:
        """Counts a file on which the faster implementation failed. The file may be broken, or its kind may be
        unsupported."""
        self._num_faults[kind] = self._num_faults.get(kind, 0) + 1

    def withdraw(self, kind: int) -> None:
        """Disables the faster implementation for this kind, because a result differed."""
        self._proved[_LOST_AT + kind] = 1
