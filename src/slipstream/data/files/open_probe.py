"""Which files a batch opens, as Python itself tells. Asked for the first batches of a process only; what opens files
without Python (OpenCV, a C++ reader) is not seen."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any


class OpenedFiles:
    """Of the thread that began to watch. A hook of Python's cannot be taken away again: it is one, and it is told when
    to rest."""

    def __init__(self) -> None:
        self._is_hooked = False
        self._thread = 0  # whose files are noted; 0: nobody's
        self._paths: list[str] = []

    def begin(self) -> None:
        if not self._is_hooked:
            sys.addaudithook(self._hear)
            self._is_hooked = True
        self._paths = []
        self._thread = threading.get_ident()

    def end(self) -> list[str]:
        self._thread = 0
        return list(dict.fromkeys(self._paths))

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self._thread and event == "open" and self._thread == threading.get_ident():
            path = args[0]
            if isinstance(path, (str, bytes, os.PathLike)):
                self._paths.append(os.fsdecode(path))


OPENED = OpenedFiles()
