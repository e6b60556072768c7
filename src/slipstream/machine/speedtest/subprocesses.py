"""Starts a module of the speed test in another process. The process does not run in the user's folder, because files
there could shadow modules of the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any


def start(
    module: str, *arguments: str, folder: str, errors: int | IO[Any] = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Starts the module in `folder`, with pipes for its input and output."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": _paths()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )


def last_line(errors: bytes) -> str:
    """Returns the last line of a process's error output, for a message."""
    return (errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1][:200]


def _paths() -> str:
    """Returns PYTHONPATH with this slipstream first. Relative entries are made absolute, because the child has another
    working directory."""
    own = str(Path(__file__).resolve().parents[3])
    given = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join([own, *given])
