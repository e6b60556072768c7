"""The exception that ends a trial early. Ordinary exception handlers do not catch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar


class StopTrial(SystemExit):
    """Raised from a seam, in the script's own thread, once the trial has measured everything it should measure. It is a
    SystemExit with code 0, so that a child process started by the script also ends without an error."""

    on_stop: ClassVar[Callable[[], None] | None] = None  # called every time, before it is raised

    def __init__(self) -> None:
        super().__init__(0)
        if StopTrial.on_stop is not None:
            StopTrial.on_stop()
