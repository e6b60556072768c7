"""The exception that ends a trial early. Ordinary exception handlers do not catch it."""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[], None]] = []


class StopTrial(SystemExit):
    """Raised from a seam, in the script's own thread, once the trial has measured everything it should measure. It is a
    SystemExit with code 0, so that a child process started by the script also ends without an error."""

    def __init__(self) -> None:
        super().__init__(0)
        for listener in _listeners:
            listener()


def add_stop_listener(listener: Callable[[], None]) -> None:
    """Calls `listener` every time before a seam stops the script, until the process ends."""
    _listeners.append(listener)
