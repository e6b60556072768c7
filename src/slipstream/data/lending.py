"""Says, in a worker, that a shared storage which is made now will be written all over: it may be one that was used
before. Whether there is such a one is for others to know."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_thread = threading.local()


@contextmanager
def lent_storages() -> Iterator[None]:
    _thread.is_lending = True
    try:
        yield
    finally:
        _thread.is_lending = False


def is_lending() -> bool:
    return getattr(_thread, "is_lending", False)
