"""The temporary directory of one rider: layers, spool, scratch. Leaves nothing behind, and sweeps up after a command
that was killed before it could."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from slipstream.launch.target import protected_folders
from slipstream.sandbox import downloads, overlay

_PREFIX = "slipstream-check-"


class Workspace:
    """Named after the process that made it, so that a later one can tell whether it is still in use."""

    def __init__(self, parent: Path) -> None:
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent)).resolve()
        self.spool = self.path / "spool"
        self.scratch = self.path / "scratch"
        self.layers = self.path / "layers"
        for folder in (self.spool, self.scratch, self.layers):
            folder.mkdir()
        self.plan: overlay.OverlayPlan | None = None

    def cover(self, cwd: Path, script: Sequence[str], *, own_user: bool) -> overlay.OverlayPlan:
        """Plans a throw-away view of the file system for the rider, with what earlier ones downloaded."""
        through = [str(self.spool), str(self.scratch)]
        kept = downloads.kept_downloads(cwd)
        protected = protected_folders(cwd, script)
        self.plan = overlay.prepare(self.layers, own_user=own_user, through=through, kept=kept, protected=protected)
        return self.plan

    def lay_over(self, plan: overlay.OverlayPlan | None, files: Mapping[str, bytes]) -> overlay.OverlayPlan | None:
        """The plan with these files' new texts. Raises OSError where they cannot be covered."""
        over: list[overlay.KeptDownload] = []
        for number, (name, text) in enumerate(files.items()):
            path = os.path.realpath(name)
            if plan is None or not overlay.covers(plan, path):
                raise OSError(f"{path} cannot be covered on this system")
            place = self.spool / f"over-{number}"
            place.write_bytes(text)
            shutil.copymode(path, place)
            over.append(overlay.KeptDownload(path, str(place)))
        return msgspec.structs.replace(plan, over=over) if plan is not None and over else plan

    def remove(self) -> None:
        if self.plan is not None:
            overlay.clean_up(self.plan)
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
