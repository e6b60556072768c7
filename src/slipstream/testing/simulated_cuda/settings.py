"""The settings of the simulated devices: their number, size and speed. Environment variables carry the settings, so all
processes that a test starts have the same devices."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

PREFIX = "SIMULATED_CUDA_"
LIBRARY = "SIMULATED_CUDA_LIBRARY"  # Path of the library. If the variable is set, torch loads the device.


@dataclass(frozen=True)
class Settings:
    devices: int = 2
    memory_mb: int = 4096  # Memory of each device, which all processes share
    context_mb: int = 300  # Memory that each process uses before its first tensor
    capability: str = "8.6"
    queue_depth: int = 1024  # Number of launches that a stream accepts before the host waits
    kernel_us: float = 0.0  # Shortest time of a kernel
    slowdown: float = 1.0  # Time of a kernel, divided by the time that the CPU needs for it
    copy_gb_per_s: float = 0.0  # Speed of copies between host and device; 0: as fast as the CPU copies
    poison: bool = True  # Whether freed memory is overwritten, in the order of its stream
    compute: bool = True  # Whether kernels compute. If they do not, a measurement shows the host's time alone.
    machine: str = ""  # Processes with equal names share the memory of the devices; empty: all processes of this user


def environment(library: Path, settings: Settings | None = None) -> dict[str, str]:
    """Returns the environment variables that make the device available in a new Python process and in its child
    processes."""
    given = settings or Settings()
    variables = {PREFIX + field.name.upper(): _text(getattr(given, field.name)) for field in fields(given)}
    variables[LIBRARY] = str(library)
    # The folder of the library contains the entry point that torch loads at the end of its import.
    folders = [str(library.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    return variables


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
