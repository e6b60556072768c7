"""Recognises from an error message that memory ran out. Knows the messages of torch's allocators, of Python, of the
libraries below them and of the system. Needs only the text, because nothing else is left of a trial that has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

_SIGNS: Final = ("OutOfMemoryError", "MemoryError", "DefaultCPUAllocator", "out of memory")
# Messages of libraries that get no memory. oneDNN uses them for other failures too.
_HINTS: Final = (
    *("bad_alloc", "ALLOC_FAILED", "not enough memory", "Cannot allocate memory"),
    *("could not create a primitive", "could not create a memory"),
)
# Messages of code that does not check its allocations, in a process with a limit
_CRASHES: Final = (*("Thread creation failed", "can't start new thread"),)
CRASH_SIGNALS: Final = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS")  # may end a process when memory runs out


def tells_shortage(message: str, is_held: bool = False) -> bool:
    """Whether the message says that memory ran out. `is_held` tells whether the process had a memory limit. If it had
    one, other failures to allocate count too."""
    return any(sign in message for sign in (*_SIGNS, *((*_HINTS, *_CRASHES) if is_held else ())))


def hints_at_shortage(message: str) -> bool:
    """Whether the message makes a shortage of memory likely enough to try again with less memory. Trying again does no
    harm if the cause was another one. This is not enough to tell the user that memory ran out."""
    return any(sign in message for sign in (*_SIGNS, *_HINTS))


@contextlib.contextmanager
def given_air() -> Iterator[None]:
    """Inside the `with` block, lifts the memory limits that the process has set for itself. Without free memory, the
    report of what uses the memory could not be made. The limits of the shell stay, because they are hard limits."""
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
