"""Starts commands as a user would, each in a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SLIPSTREAM = [sys.executable, "-m", "slipstream"]


def start(command: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell does it, with a temporary directory of its own."""
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
