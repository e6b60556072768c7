"""A loader's iterator, its holders, and its end. Torch ends workers in `__del__`, which comes too late for a loader in
a reference cycle (a Trainer, a caught exception): its queues are gone by then, and every worker is waited for in vain
for five seconds."""

from __future__ import annotations

import sys
import weakref
from typing import Any


class IteratorHold:
    """Keeps the iterator until its loader goes, so that it never becomes part of a cycle."""

    def __init__(self, loader: Any, iterator: Any) -> None:
        self._box = [iterator]
        self._finalizer = weakref.finalize(loader, self._box.clear)
        self._finalizer.atexit = False

    def is_shared(self) -> bool:
        """Whether anybody holds it besides us and the loader: how many references those make, an example tells."""
        example = [object()]
        loader = {"_iterator": example[0]}
        is_shared = sys.getrefcount(self._box[0]) > sys.getrefcount(example[0])
        del loader
        return is_shared

    def release(self) -> None:
        self._finalizer.detach()
        self._box.clear()
