"""The temporary directory of one trial: layers, spool, scratch. It is removed at the end. Directories of commands that
were killed before they could clean up are removed by a later command."""

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
    """The directory's name contains the id of the process that made it, so that a later process can tell whether it is
    still in use."""

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
        """Plans a temporary view of the file system for the trial. It includes the downloads of earlier trials."""
        through = [str(self.spool), str(self.scratch)]
        kept = downloads.kept_downloads(cwd)
        protected = protected_folders(cwd, script)
        self.plan = overlay.prepare(self.layers, own_user=own_user, through=through, kept=kept, protected=protected)
        return self.plan

    def lay_over(self, plan: overlay.OverlayPlan | None, files: Mapping[str, bytes]) -> overlay.OverlayPlan | None:
        """Returns the plan with new contents for these files. Raises OSError if a file cannot be covered."""
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
    """Removes the directories of processes that no longer exist."""
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
