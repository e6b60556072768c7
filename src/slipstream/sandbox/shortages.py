"""Names what the system has run out of, and what the user can do about it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final

_LEAST_BYTES: Final = 16 << 10  # with less, not even a short message can be stored


def shortage(error: OSError) -> str:
    """Returns a sentence about a full disk, too many open files, too many processes or a file that cannot be written.
    Returns "" for other errors."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full_disk(Path(os.fsdecode(error.filename)) if error.filename else None)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open. Raise the limit, for example with: ulimit -n 1024"
    if error.errno == errno.EAGAIN:
        return "no more processes can be started. Raise the limit (ulimit -u), or end other programs"
    if error.errno in (errno.EROFS, errno.EACCES) and error.filename:
        return f"{os.fsdecode(error.filename)} cannot be written: {error.strerror}"
    return ""


def full_disk(path: Path | None = None) -> str:
    """Returns a sentence about the disk of `path`, which stores what trials write until they end."""
    where = f" of {path.parent}" if path is not None else ""
    return (
        f"the disk{where} is full, so that what the script wrote and what was measured could not be stored. Free space"
        " there, or set TMPDIR to a folder on another disk"
    )


def is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _LEAST_BYTES
    except OSError:
        return False
