"""Torch's own profile of a few steps, kept for whoever wants to look at it in a trace viewer."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

PROFILE = "torch-profile.json"


def keep_profile(made: Path, path: Path) -> list[str]:
    """Where the user wants it, packed if its name ends in .gz. Returns notes: a check does not fail of it."""
    if not made.is_file() or not made.stat().st_size:
        return [f"There is no torch profile in {path}: no step was run under the profiler."]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with made.open("rb") as source, gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError as error:
        return [f"The torch profile could not be written to {path}: {error.strerror}."]
    return [f"Torch's profile of a few steps is in {path}; slipstream report --trace FILE lays it over the phases."]
