"""How many riders fit beside each other, from what the first of them used. Careful: a machine that swaps, or whose
kernel ends a process, spoils a tuning."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from slipstream.machine.cgroups import read_limits

_MARGIN = 1.3  # a candidate may use more than the base: workers, a compiler
_SHARE = 0.8  # of what is free
_CONTEXT_BYTES = 600 << 20  # a device's own, for every process that uses it


def free_bytes(root: Path = Path("/")) -> int:
    """Host memory that new riders may use: of the machine, and of the container."""
    available = psutil.virtual_memory().available
    limit = read_limits(root).memory_bytes
    if limit is None:
        return int(available)
    return int(max(0, min(available, limit - _used_bytes(root))))


def total_bytes(root: Path = Path("/")) -> int:
    """Of the machine, or of the container where that has less."""
    limit = read_limits(root).memory_bytes
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)


def _used_bytes(root: Path) -> int:
    """By this container, without what the kernel could give back."""
    for usage, statistics in (
        ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "sys/fs/cgroup/memory/memory.stat"),
    ):
        try:
            used = int((root / usage).read_text())
            lines = dict(line.split() for line in (root / statistics).read_text().splitlines())
        except (OSError, ValueError):
            continue
        return used - int(lines.get("total_inactive_file", lines.get("inactive_file", 0)))
    return 0


def shared_bytes() -> tuple[int, int]:
    """Of the directory where loader workers hand over their batches: used, and free."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return 0, 1 << 60
    return usage.used, usage.free


def num_fitting(free: int, each: int) -> int:
    """Beside those that are there already."""
    return int(_SHARE * free / (_MARGIN * each)) if each > 0 else 1 << 20


def num_on_device(free: int, each: int) -> int:
    """The same for a device's memory."""
    return num_fitting(free, each + _CONTEXT_BYTES) if each > 0 else 1 << 20
