"""Starts commands as a user would, each in its own directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SLIPSTREAM = [sys.executable, "-m", "slipstream"]


def start(command: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start the command in a new process group, as a shell does, with its own temporary directory."""
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
