"""Which images were found to be undamaged: one process's look counts for all that are forked from the same one, so that
workers who come anew in every epoch need not look again. Forgets one where another takes its place; never remembers one
that was not looked at."""

from __future__ import annotations

import mmap

_SLOTS = 1 << 20  # eight bytes each, of which a page takes memory when it is first written
_WHOLE = (1 << 64) - 1


class Checked:
    def __init__(self) -> None:
        self._stamps = memoryview(mmap.mmap(-1, 8 * _SLOTS)).cast("Q")  # anonymous and shared: a fork keeps it

    def has(self, stamp: int) -> bool:
        """A stamp tells an image and the state of its file from all others."""
        stamp = stamp & _WHOLE or 1  # 0: nobody's place yet
        return self._stamps[stamp % _SLOTS] == stamp

    def add(self, stamp: int) -> None:
        stamp = stamp & _WHOLE or 1
        self._stamps[stamp % _SLOTS] = stamp
