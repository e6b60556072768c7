"""What a simulated device is like: how many, how large, how fast. Settings travel in the environment, so that every
process that a test starts sees the same devices."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

PREFIX = "SIMULATED_CUDA_"
LIBRARY = "SIMULATED_CUDA_LIBRARY"  # set where torch is to load the device


@dataclass(frozen=True)
class Settings:
    devices: int = 2
    memory_mb: int = 4096  # of each device, shared by all processes
    context_mb: int = 300  # that each process takes before its first tensor
    capability: str = "8.6"
    queue_depth: int = 1024  # launches that a stream takes before the host waits
    kernel_us: float = 0.0  # what a kernel takes at least
    slowdown: float = 1.0  # how many times longer a kernel takes than the CPU needs for it
    copy_gb_per_s: float = 0.0  # of copies between host and device; 0: as fast as the CPU copies
    poison: bool = True  # memory that is given back is overwritten, in the order of its stream
    compute: bool = True  # False: kernels do nothing, for measuring what the host spends
    machine: str = ""  # processes with the same name share the memory of the devices; empty: those of this user


def environment(library: Path, settings: Settings | None = None) -> dict[str, str]:
    """The variables with which a new Python process, and those that it starts, have the device."""
    given = settings or Settings()
    variables = {PREFIX + field.name.upper(): _text(getattr(given, field.name)) for field in fields(given)}
    variables[LIBRARY] = str(library)
    # The folder of the library has the entry point that torch loads at the end of its import.
    folders = [str(library.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    return variables


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
