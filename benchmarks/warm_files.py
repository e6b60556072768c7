"""Maps the files that contestants read, so that they stay in memory.

Some systems drop a file from the page cache if no process has mapped or read the file for a minute. DAMON does so on a
virtual machine. A contestant may wait for its turn longer than a minute. Without mapping, its next block would read
from a cold disk, except if the contestant keeps its file mapped.
"""

from __future__ import annotations

import mmap
from pathlib import Path


class WarmFiles:
    def __init__(self) -> None:
        self._held: dict[Path, mmap.mmap] = {}

    def hold(self, folder: Path) -> int:
        """Maps every file below the folder as long as this object exists. Returns the number of new files."""
        before = len(self._held)
        for path in folder.rglob("*"):
            if path.is_file() and path not in self._held and path.stat().st_size:
                with path.open("rb") as file:
                    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
                    self._held[path] = mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ)
        return len(self._held) - before
