"""How far another way to decode is trusted with one kind of file: the first pictures and then one in many are decoded
both ways, and one that differs ends it for good. What one process has proved or refuted counts for all that it forks
and for those that forked it."""

from __future__ import annotations

import mmap

FIRST = 8  # pictures of a kind that are decoded both ways, in all processes together
EVERY = 256  # and then one in so many of each process
MOST_FAULTS = 3  # files that the other way failed on: a kind that it does not know
_LOST_AT = 2048  # in the page: a byte of its own, which no count can overwrite


class SpotCheck:
    """In every kind, by its number."""

    def __init__(self) -> None:
        self._proved = mmap.mmap(-1, mmap.PAGESIZE)  # anonymous and shared: how many of each kind, and if lost
        self._num_pictures: dict[int, int] = {}
        self._num_faults: dict[int, int] = {}

    def has(self, kind: int) -> bool:
        return not self._proved[_LOST_AT + kind] and self._num_faults.get(kind, 0) < MOST_FAULTS

    def wants_proof(self, kind: int) -> bool:
        """Counts a picture; whether this one is decoded both ways."""
        number = self._num_pictures[kind] = self._num_pictures.get(kind, 0) + 1
        return self._proved[kind] < FIRST or number % EVERY == 0

    def note_proof(self, kind: int) -> None:
        if self._proved[kind] < FIRST:
            self._proved[kind] += 1

    def blame(self, kind: int) -> None:
        """A file that the other way failed on: a broken one, or one of many."""
        self._num_faults[kind] = self._num_faults.get(kind, 0) + 1

    def withdraw(self, kind: int) -> None:
        self._proved[_LOST_AT + kind] = 1
