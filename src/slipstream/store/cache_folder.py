"""The folder of this user's caches, and a check that only this user can write to a folder. Files that must not come
from other people are in this folder, because other people may have written to the folder of a project."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from slipstream.store.safe_files import UnsafeFileError, is_private

_VARIABLE: Final = "SLIPSTREAM_CACHE"


def cache_folder() -> Path:
    """Returns $SLIPSTREAM_CACHE, or the folder `slipstream` in the user's cache folder."""
    named = os.environ.get(_VARIABLE)
    if named:
        return Path(named).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "slipstream"


def make_private_folder(path: Path, project: Path) -> None:
    """Creates the folder if needed. Raises UnsafeFileError if another user or the author of the project may have
    written to the folder."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(path.lstat()) or path.is_symlink():
        raise UnsafeFileError("can be written by other users", path)
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(project)):
        raise UnsafeFileError("is inside the project", path)
