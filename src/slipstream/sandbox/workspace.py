"""The temporary directory of one trial: layers, spool, scratch. It is removed when the trial has ended. If a command is
killed before it can remove its directories, a later command removes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from slipstream.launch.target import protected_folders
from slipstream.sandbox import downloads, overlay
from slipstream.sandbox.temporary_folder import WORKSPACE_PREFIX, TemporaryFolder, sweep


class Workspaces:
    """Makes the workspaces of one command's trials, with an overlay if the system allows it."""

    def __init__(self, script: Sequence[str], use_overlay: bool, is_offline: bool = False) -> None:
        """With `is_offline`, every trial gets its own network without a connection."""
        self._is_offline = is_offline
        self._cwd, self._script = Path.cwd(), script
        self._parent, self._own_user, reason = overlay.probe() if use_overlay else (None, False, "--no-overlay")
        self.no_overlay = reason if self._parent is None else ""  # why trials have no overlay

    def go_uncovered(self, reason: str) -> None:
        """From now on, trials have no overlay."""
        self._parent, self.no_overlay = None, reason

    def make(self, over: Mapping[str, bytes] | None = None) -> Workspace:
        """Makes a workspace, which the caller removes. `over` maps files to other contents for this trial. Raises
        OSError if no overlay covers one of these files."""
        workspace = Workspace(self._parent or overlay.temporary_directory(), self._is_offline)
        try:
            if self._parent is not None:
                workspace.cover(self._cwd, self._script, own_user=self._own_user)
            workspace.lay_over(over or {})
        except BaseException:
            workspace.remove()
            raise
        return workspace


class Workspace:
    def __init__(self, parent: Path, is_offline: bool = False) -> None:
        self.is_offline = is_offline
        sweep(parent)
        self._folder = TemporaryFolder(WORKSPACE_PREFIX, parent)
        self.path = self._folder.path
        self.spool = self.path / "spool"
        self.scratch = self.path / "scratch"
        self.layers = self.path / "layers"
        for folder in (self.spool, self.scratch, self.layers):
            folder.mkdir()
        self.plan: overlay.OverlayPlan | None = None

    def cover(self, cwd: Path, script: Sequence[str], *, own_user: bool) -> None:
        """Plans a temporary view of the file system for the trial. It includes the downloads of earlier trials."""
        through = [str(self.spool), str(self.scratch)]
        kept = downloads.kept_downloads(cwd)
        protected = protected_folders(cwd, script)
        self.plan = overlay.prepare(self.layers, own_user=own_user, through=through, kept=kept, protected=protected)

    def lay_over(self, files: Mapping[str, bytes]) -> None:
        """Gives these files another content in the overlay. Raises OSError if a file cannot be covered."""
        over: list[overlay.KeptDownload] = []
        for number, (name, text) in enumerate(files.items()):
            path = os.path.realpath(name)
            if self.plan is None or not overlay.covers(self.plan, path):
                raise OSError(f"{path} cannot be covered on this system")
            place = self.spool / f"over-{number}"
            place.write_bytes(text)
            shutil.copymode(path, place)
            over.append(overlay.KeptDownload(path, str(place)))
        if self.plan is not None:
            self.plan = msgspec.structs.replace(self.plan, over=over)

    def remove(self) -> None:
        if self.plan is not None:
            overlay.clean_up(self.plan)
        self._folder.remove()
