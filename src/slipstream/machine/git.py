"""Finds the git commit of the user's source. Nothing is written. If git fails, there is no commit."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from slipstream.records import Revision

_TIMEOUT_S: Final = 10.0


def read_revision(folder: Path) -> Revision | None:
    commit = resolve_commit("HEAD", folder)
    if not commit:
        return None
    # Untracked files are ignored: they are more often logs and checkpoints than source, and listing them can take
    # minutes.
    changed = _ask(["status", "--porcelain", "--untracked-files=no", "--ignore-submodules"], folder)
    return Revision(commit, bool(changed))


def resolve_commit(name: str, folder: Path) -> str:
    """Returns the full hash of the commit with this name (HEAD~1, a branch, a tag, the beginning of a hash), or "" if
    there is none."""
    if not name or name.startswith("-"):
        return ""
    return _ask(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"], folder).strip()


def _ask(arguments: list[str], folder: Path) -> str:
    command = ["git", "--no-optional-locks", *arguments]
    try:
        answer = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
