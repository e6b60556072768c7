"""A patch written into the files: all of them or none, each whole or not at all. Not over changes that git does not
know yet, unless that is wished."""

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
    """Of these files, what git would say is changed or not its own. Outside of a repository: nothing."""
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
            continue  # no git here: there is no tree to be dirty
        if done.returncode == 0 and done.stdout.strip():
            found.append(file.path)
    return found


def write(files: Sequence[ChangedFile]) -> None:
    """Raises PatchError, with every file as it was."""
    ready: list[tuple[Path, ChangedFile]] = []
    replaced: list[tuple[Path, ChangedFile]] = []
    try:
        for file in files:
            ready.append((_partial(file), file))
            _prepare(*ready[-1])
        for partial, file in ready:
            target = Path(os.path.realpath(file.path))
            if target.read_bytes() != file.before:
                raise PatchError(f"{file.path} was changed while it was being patched; nothing was written.")
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
    """The new text next to the old, with its mode."""
    partial.write_bytes(file.after)
    shutil.copymode(file.path, partial)
