"""Whether memory ran out, by the words of torch's allocators, of Python, of the libraries below them and of the system.
Reads text alone: what is left of a rider that is gone."""

from __future__ import annotations

from typing import Final

UNHELD: Final = "to a limit of memory"  # ends the reason why a rider could not be held to one
_SIGNS: Final = ("OutOfMemoryError", "MemoryError", "DefaultCPUAllocator", "out of memory")
# Of a process that is held to a limit: what libraries say when they get no memory, and how those end that do not look
_UNDER_A_LIMIT: Final = (
    *("bad_alloc", "ALLOC_FAILED", "not enough memory", "Cannot allocate memory", "could not create a primitive"),
    *("Thread creation failed", "can't start new thread", "could not create a memory"),
    *("ended by SIGKILL", "ended by SIGSEGV", "ended by SIGABRT", "ended by SIGBUS"),
)


def tells_shortage(message: str, is_held: bool = False) -> bool:
    """`is_held`: to a limit, so that even a crash means it."""
    return any(sign in message for sign in (*_SIGNS, *(_UNDER_A_LIMIT if is_held else ())))
