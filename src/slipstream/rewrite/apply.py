"""Writes a patch into the files: either into all of them or into none. Also finds files with uncommitted changes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slipstream.rewrite.errors import PatchError
from slipstream.rewrite.make_patch import ChangedFile


def uncommitted(files: Sequence[ChangedFile]) -> list[Path]:
    """Returns the files that git does not track, or whose changes are not committed. Files outside of a repository are
    not returned."""
    found = []
    for file in files:
        path = file.path.absolute()
        try:
            done = subprocess.run(
                ["git", "status", "--porcelain", "--ignored", "--", path.name],
                cwd=path.parent,
                capture_output=True,
                timeout=60,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue  # git is not installed, or takes too long
        if done.returncode == 0 and done.stdout.strip():
            found.append(file.path)
    return found


def write(files: Sequence[ChangedFile]) -> None:
    """Writes all files. If one cannot be written, leaves every file as it was and raises PatchError."""
    ready: list[tuple[Path, ChangedFile]] = []
    replaced: list[tuple[Path, ChangedFile]] = []
    try:
        for file in files:
            ready.append((_partial(file), file))
            _prepare(*ready[-1])
        for partial, file in ready:
            target = Path(os.path.realpath(file.path))
            if target.read_bytes() != file.before:
                raise PatchError(f"{file.path} changed while it was being patched. Nothing was written.")
            partial.replace(target)
            replaced.append((target, file))
    except (OSError, PatchError) as error:
        for target, file in replaced:
            target.write_bytes(file.before)
        if isinstance(error, PatchError):
            raise
        raise PatchError(f"Nothing was written: {error.filename}: {error.strerror}.") from None
    finally:
        for partial, _ in ready:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _partial(file: ChangedFile) -> Path:
    target = Path(os.path.realpath(file.path))
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


def _prepare(partial: Path, file: ChangedFile) -> None:
    """Writes the new text to a file next to the old one, with the same mode."""
    partial.write_bytes(file.after)
    shutil.copymode(file.path, partial)
