"""Threads of ours that run the script's own code beside the script: data threads. Seams that look for what the script
calls look past them, and they stand still while the script stands still for a race."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_idents: set[int] = set()
_gate = threading.Event()
_gate.set()


@contextlib.contextmanager
def thread() -> Iterator[None]:
    """This thread is one of them for as long as the `with` lasts."""
    ident = threading.get_ident()
    _idents.add(ident)
    try:
        yield
    finally:
        _idents.discard(ident)


def is_beside() -> bool:
    return bool(_idents) and threading.get_ident() in _idents


def hold() -> None:
    """From now on each stops at the next place where it asks. Work in C is not interrupted."""
    _gate.clear()


def release() -> None:
    _gate.set()


def is_held() -> bool:
    return not _gate.is_set()


def stand_if_held() -> None:
    if not _gate.is_set():
        _gate.wait()
