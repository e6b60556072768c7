"""Whether memory ran out, by the words of torch's allocators, of Python, of the libraries below them and of the system.
Reads text alone: what is left of a rider that is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

UNHELD: Final = "to a limit of memory"  # ends the reason why a rider could not be held to one
_SIGNS: Final = ("OutOfMemoryError", "MemoryError", "DefaultCPUAllocator", "out of memory")
# What libraries say when they get no memory; oneDNN says it of other failures too
_HINTS: Final = (
    *("bad_alloc", "ALLOC_FAILED", "not enough memory", "Cannot allocate memory"),
    *("could not create a primitive", "could not create a memory"),
)
# How those end that do not look, in a process that is held to a limit
_CRASHES: Final = (
    *("Thread creation failed", "can't start new thread"),
    *("ended by SIGKILL", "ended by SIGSEGV", "ended by SIGABRT", "ended by SIGBUS"),
)


def tells_shortage(message: str, is_held: bool = False) -> bool:
    """`is_held`: to a limit, so that even a crash means it."""
    return any(sign in message for sign in (*_SIGNS, *((*_HINTS, *_CRASHES) if is_held else ())))


def hints_at_shortage(message: str) -> bool:
    """Enough to try again with less, which does no harm where it was something else; not enough to say so."""
    return any(sign in message for sign in (*_SIGNS, *_HINTS))


@contextlib.contextmanager
def given_air() -> Iterator[None]:
    """Limits that a process set for itself are lifted meanwhile: where the last byte is taken, not even a list of what
    took it can be made. Those of the shell stay, for they are hard."""
    try:
        import resource
    except ImportError:  # not a Unix
        yield
        return
    before = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)}
    for kind, (_, hard) in before.items():
        resource.setrlimit(kind, (hard, hard))
    try:
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)
