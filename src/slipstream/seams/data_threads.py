"""Data threads: threads of this package that run the script's data code in parallel with the script. Seams that look
for calls of the script ignore these threads. Data threads stop while the script is paused in a race."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_idents: set[int] = set()
_gate = threading.Event()
_gate.set()


@contextlib.contextmanager
def thread() -> Iterator[None]:
    """Marks the current thread as a data thread inside the `with` block."""
    ident = threading.get_ident()
    _idents.add(ident)
    try:
        yield
    finally:
        _idents.discard(ident)


def is_beside() -> bool:
    """Whether the current thread is a data thread."""
    return bool(_idents) and threading.get_ident() in _idents


def hold() -> None:
    """Makes every data thread stop at its next call of `stand_if_held`. Work in C is not interrupted."""
    _gate.clear()


def release() -> None:
    _gate.set()


def is_held() -> bool:
    return not _gate.is_set()


def stand_if_held() -> None:
    """Waits until `release` is called, if the data threads are held."""
    if not _gate.is_set():
        _gate.wait()
