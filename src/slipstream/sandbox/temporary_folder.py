"""A temporary directory. If the command that made it is killed, a later command removes it.

The process that made the directory holds a lock on it. The system releases the lock when the process ends. A process id
would not be enough: a computer and its containers may share `/tmp`, but they do not see each other's process ids."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

WORKSPACE_PREFIX: Final = "slipstream-check-"
PROBE_PREFIX: Final = "slipstream-probe-"


def places() -> list[Path]:
    """Returns where temporary directories may be, best first."""
    known = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/dev/shm")]
    usable = [place for place in dict.fromkeys(known) if os.access(place, os.W_OK | os.X_OK)]
    return sorted(usable, key=lambda place: shutil.disk_usage(place).free < 2 << 30)  # places with space first


def sweep(parent: Path) -> None:
    """Removes the directories of commands that were killed."""
    for prefix in (WORKSPACE_PREFIX, PROBE_PREFIX):
        remove_abandoned(parent, prefix)


class TemporaryFolder:
    def __init__(self, prefix: str, parent: Path) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent)).resolve()
            if self._hold():
                return

    def _hold(self) -> bool:
        """Locks the directory. Returns False if another command has removed it before."""
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        import fcntl  # does not exist on Windows, where only commands that read sessions work

        with contextlib.suppress(OSError):  # a file system without locks; `remove_abandoned` removes nothing there
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # waits for a command that is looking at the directory
        if self.path.is_dir():
            return True
        os.close(self._descriptor)
        return False

    def remove(self) -> None:
        """Removes the directory. May be called more than once."""
        remove_tree(self.path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Removes this user's directories that no living process has locked."""
    import fcntl

    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # locked, just removed, or on a file system without locks
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(path)
            finally:
                os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Removes the directory, including the directories that an overlay left without permissions."""
    for place, folders, _ in os.walk(folder):
        for name in folders:
            inner = Path(place, name)
            if not inner.is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
