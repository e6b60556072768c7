"""What torch itself recorded of the observed step, kept for whoever wants to look at it in torch's own viewers: its
profile, or the memory snapshot of `memory`."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

PROFILE = "torch-profile.json"
_NAMES = {"check": "torch profile", "memory": "memory snapshot"}
_MISSING = {
    "check": "no step was run under the profiler",
    "memory": "torch makes them on CUDA devices alone, and no step was observed on one",
}
_KEPT = {"check": "Torch's profile of a few steps", "memory": "Torch's memory snapshot of the observed step"}
_MORE = {"check": "; slipstream report --trace FILE lays it over the phases", "memory": ""}


def keep_profile(made: Path, path: Path, command: str = "check") -> list[str]:
    """Where the user wants it, packed if its name ends in .gz. Returns notes: a check does not fail of it."""
    if not made.is_file() or not made.stat().st_size:
        return [f"There is no {_NAMES[command]} in {path}: {_MISSING[command]}."]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with made.open("rb") as source, gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError as error:
        return [f"The {_NAMES[command]} could not be written to {path}: {error.strerror}."]
    return [f"{_KEPT[command]} is in {path}{_MORE[command]}."]
