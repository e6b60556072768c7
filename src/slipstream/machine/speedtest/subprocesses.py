"""How the speed test starts a module of its own in another process: away from the user's folder, whose files could
stand in for modules of the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any


def start(
    module: str, *arguments: str, folder: str, errors: int | IO[Any] = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """In `folder`; words go in and come out through pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": _paths()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )


def last_words(errors: bytes) -> str:
    return (errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1][:200]


def _paths() -> str:
    """This slipstream, then what was there: relative entries mean the folder that we are in, not the child's."""
    own = str(Path(__file__).resolve().parents[3])
    given = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join([own, *given])
