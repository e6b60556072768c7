"""Controls when a loader's iterator is destroyed.

Torch ends workers in the iterator's `__del__`. If the loader is part of a reference cycle (a Trainer, a caught
exception), that is too late: the queues are gone by then, and torch waits five seconds for each worker in vain."""

from __future__ import annotations

import sys
import weakref
from typing import Any


class IteratorHold:
    """Keeps the iterator alive until its loader is destroyed, so that it never becomes part of a cycle."""

    def __init__(self, loader: Any, iterator: Any) -> None:
        self._box = [iterator]
        self._finalizer = weakref.finalize(loader, self._box.clear)
        self._finalizer.atexit = False

    def is_shared(self) -> bool:
        """Whether anything besides this object and the loader holds the iterator. The reference count is compared with
        that of an example object that is held in the same two ways."""
        example = [object()]
        loader = {"_iterator": example[0]}
        is_shared = sys.getrefcount(self._box[0]) > sys.getrefcount(example[0])
        del loader
        return is_shared

    def release(self) -> None:
        self._finalizer.detach()
        self._box.clear()
