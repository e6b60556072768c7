"""How a ride ends early: one exception that ordinary handlers do not catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar


class StopTrial(SystemExit):
    """Raised from a seam, in the script's own thread, once everything asked for has been seen.
    A SystemExit of code 0, so that a child process started by the script ends quietly as well."""

    on_stop: ClassVar[Callable[[], None] | None] = None  # told every time, before it is raised

    def __init__(self) -> None:
        super().__init__(0)
        if StopTrial.on_stop is not None:
            StopTrial.on_stop()
