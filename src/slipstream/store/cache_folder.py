"""Where the caches of this user are. Only this user writes there, unlike in the folder of a project."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from slipstream.store.safe_files import UnsafeFileError, is_private

_VARIABLE: Final = "SLIPSTREAM_CACHE"


def cache_folder() -> Path:
    """$SLIPSTREAM_CACHE, or slipstream in the user's cache."""
    named = os.environ.get(_VARIABLE)
    if named:
        return Path(named).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "slipstream"


def make_private_folder(path: Path, project: Path) -> None:
    """Creates the folder if needed. Raises UnsafeFileError if somebody else may have written into it: another user, or
    the author of the project."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(path.lstat()) or path.is_symlink():
        raise UnsafeFileError("can be written by other users", path)
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(project)):
        raise UnsafeFileError("is inside the project", path)
