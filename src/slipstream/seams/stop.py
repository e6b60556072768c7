"""The exception that ends a trial early. Ordinary exception handlers do not catch it."""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[], None]] = []


class StopTrial(SystemExit):
    """Is raised from a seam, in the script's own thread, when the trial is over. This exception is a SystemExit with
    code 0, so a child process that the script has started also ends without an error."""

    def __init__(self) -> None:
        super().__init__(0)
        for listener in _listeners:
            listener()


def add_stop_listener(listener: Callable[[], None]) -> None:
    """Calls `listener` each time when a seam is about to stop the script, until the process ends."""
    _listeners.append(listener)
