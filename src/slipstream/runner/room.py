"""The temporary directory of one check: layers, spool, scratch. Leaves nothing behind, and sweeps up after a check that
was killed before it could."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from slipstream.runner import overlay

_PREFIX = "slipstream-check-"


class Room:
    """Named after the process that made it, so that a later one can tell whether it is still in use."""

    def __init__(self, parent: Path) -> None:
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent)).resolve()
        self.spool = self.path / "spool"
        self.scratch = self.path / "scratch"
        self.layers = self.path / "layers"
        for folder in (self.spool, self.scratch, self.layers):
            folder.mkdir()

    def remove(self) -> None:
        overlay.remove(self.path)


def sweep(parent: Path) -> None:
    """Rooms of processes that are gone."""
    for path in parent.glob(f"{_PREFIX}*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)) and path.lstat().st_uid == os.geteuid():
            overlay.remove(path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
