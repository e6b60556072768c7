"""Records which files a batch opens, with a Python audit hook. Only the first batches of a process are recorded. Files
that are opened without Python (by OpenCV or a C++ reader) are not seen."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any


class OpenedFiles:
    """The files that the thread that called `begin` opens until `end`. Python audit hooks cannot be removed, so there
    is one hook per process, and it does nothing while no thread is recorded."""

    def __init__(self) -> None:
        self._is_hooked = False
        self._thread = 0  # the recorded thread; 0: none
        self._paths: list[str] = []

    def begin(self) -> None:
        if not self._is_hooked:
            sys.addaudithook(self._on_audit_event)
            self._is_hooked = True
        self._paths = []
        self._thread = threading.get_ident()

    def end(self) -> list[str]:
        self._thread = 0
        return list(dict.fromkeys(self._paths))

    def _on_audit_event(self, event: str, args: tuple[Any, ...]) -> None:
        if self._thread and event == "open" and self._thread == threading.get_ident():
            path = args[0]
            if isinstance(path, (str, bytes, os.PathLike)):
                self._paths.append(os.fsdecode(path))


OPENED = OpenedFiles()
