"""How far another way to decode is trusted with one kind of file: the first pictures and then one in many are decoded
both ways, and one that differs ends it for good."""

from __future__ import annotations

FIRST = 8  # pictures of a kind that are decoded both ways, in each process
EVERY = 256  # and then one in so many
MOST_FAULTS = 3  # files that the other way failed on: a kind that it does not know


class Trust:
    def __init__(self) -> None:
        self.is_open = True
        self._num_pictures = 0
        self._num_faults = 0

    def wants_proof(self) -> bool:
        """Counts a picture; whether this one is decoded both ways."""
        self._num_pictures += 1
        return self._num_pictures <= FIRST or self._num_pictures % EVERY == 0

    def blame(self) -> None:
        """A file that the other way failed on: a broken one, or one of many."""
        self._num_faults += 1
        if self._num_faults >= MOST_FAULTS:
            self.is_open = False

    def withdraw(self) -> None:
        self.is_open = False
