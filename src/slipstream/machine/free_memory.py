"""Computes how many trials fit in memory at the same time, from the memory of the first trial. The estimate is
conservative, because a tuning is useless if the machine swaps or the kernel kills a process."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from slipstream.machine.cgroups import read_limits

_MARGIN = 1.3  # a candidate may use more than the base, for workers or a compiler
_SHARE = 0.8  # the share of the free memory that trials may use
_CONTEXT_BYTES = 600 << 20  # size of the device context that every process needs


def free_bytes(root: Path = Path("/")) -> int:
    """Returns the host memory that new trials may use, within the limits of the machine and of the container."""
    available = psutil.virtual_memory().available
    limit = read_limits(root).memory_bytes
    if limit is None:
        return int(available)
    return int(max(0, min(available, limit - _used_bytes(root))))


def total_bytes(root: Path = Path("/")) -> int:
    """Returns the memory of the machine, or of the container if the container has less."""
    limit = read_limits(root).memory_bytes
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)


def _used_bytes(root: Path) -> int:
    """Returns the memory that this container uses, without what the kernel could reclaim."""
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
    """Returns the used and the free bytes of the directory through which loader workers pass their batches."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return 0, 1 << 60
    return usage.used, usage.free


def num_fitting(free: int, each: int) -> int:
    """Returns how many more trials of `each` bytes fit in `free` bytes."""
    return int(_SHARE * free / (_MARGIN * each)) if each > 0 else 1 << 20


def num_on_device(free: int, each: int) -> int:
    """Returns how many more trials of `each` bytes fit in `free` bytes of a device."""
    return num_fitting(free, each + _CONTEXT_BYTES) if each > 0 else 1 << 20
