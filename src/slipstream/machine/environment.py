"""Describes the machine as the parent process sees it: cores, memory, container limits, disk, GPUs. This module imports
no torch and never fails. A value that cannot be read is reported as unknown."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from slipstream.machine.cgroups import CgroupLimits, read_limits
from slipstream.machine.disk import read_disk_kind
from slipstream.machine.gpu import load_nvml, read_gpus
from slipstream.records import Environment
from slipstream.version import VERSION

_VARIABLES: Final = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_NUM", "ATEN_", "PYTORCH_", "TORCHINDUCTOR_", "TORCH_NUM", "NCCL_"),
    *("CUDA_VISIBLE", "CUDA_LAUNCH", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "ONEDNN_", "DNNL_", "MALLOC_", "LD_PRELOAD"),
)


def read_environment(cwd: str | Path, root: Path = Path("/")) -> Environment:
    limits = read_limits(root)
    logical = psutil.cpu_count(logical=True) or os.cpu_count() or 1
    shm_bytes, shm_free_bytes = _read_shared_memory(root)
    memory_bytes = psutil.virtual_memory().total
    limit_bytes = limits.memory_bytes
    return Environment(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        slipstream=VERSION,
        cpu=read_cpu_name(root),
        num_cores=psutil.cpu_count(logical=False) or logical,
        num_logical=logical,
        num_usable=count_usable_cores(root),
        memory_bytes=memory_bytes,
        # A limit above the machine's memory has no effect.
        memory_limit_bytes=limit_bytes if limit_bytes is not None and limit_bytes < memory_bytes else None,
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        disk_kind=read_disk_kind(Path(cwd).resolve(), root),
        load=_read_load(),
        gpus=read_gpus(load_nvml()),
        variables=read_variables(),
        idle_file_s=read_idle_file_s(root),
    )


def read_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables with known prefixes. Other variables are left out, because they may be secrets."""
    return {name: environment[name] for name in sorted(environment) if name.startswith(_VARIABLES)}


def count_usable_cores(root: Path = Path("/")) -> float:
    logical = psutil.cpu_count(logical=True) or os.cpu_count() or 1
    return count_usable(logical, _count_affine(), read_limits(root))


def count_usable(num_logical: int, num_affine: int | None, limits: CgroupLimits) -> float:
    """Returns how many cores this process may use: the minimum of the machine's cores, the affinity and the quota."""
    known = [float(num_logical)]
    if num_affine:
        known.append(float(num_affine))
    if limits.cores is not None:
        known.append(limits.cores)
    return min(known)


def read_cpu_name(root: Path = Path("/")) -> str:
    # Only Linux has this file. On ARM it may not contain the name.
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model") and value.strip():
                return " ".join(value.split())
    if sys.platform == "darwin":
        return _read_sysctl("machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine() or "unknown"


def _read_sysctl(name: str) -> str:
    import subprocess

    try:
        answer = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def _count_affine() -> int | None:
    try:
        return len(psutil.Process().cpu_affinity() or []) or None
    except (AttributeError, OSError, psutil.Error):  # macOS has no affinity
        return None


def _read_shared_memory(root: Path) -> tuple[int | None, int | None]:
    """Returns the total and the free bytes of the directory through which loader workers pass tensors on Linux. Other
    systems have no such directory."""
    try:
        usage = shutil.disk_usage(root / "dev/shm")
    except OSError:
        return None, None
    return usage.total, usage.free


def _read_load() -> float:
    try:
        return float(psutil.getloadavg()[0])
    except (AttributeError, OSError):
        return 0.0


def read_idle_file_s(root: Path = Path("/")) -> float | None:
    """Returns the seconds without use after which the system drops a file from the page cache. Some virtual machines do
    this with DAMON, Linux's memory monitor, even if much memory is free. Returns None if files stay as long as there is
    memory, which is usual, or if the settings cannot be read."""
    known = [*_read_schemes(root / "sys/kernel/mm/damon/admin/kdamonds"), *_read_module(root)]
    return min((seconds for seconds in known if seconds > 0), default=None)  # 0: the setting could not be read


def _read_schemes(kdamonds: Path) -> list[float]:
    found = []
    for kdamond in kdamonds.glob("[0-9]*"):
        if _read(kdamond / "state") != "on":
            continue
        for context in kdamond.glob("contexts/[0-9]*"):
            interval_us = _number(context / "monitoring_attrs/intervals/aggr_us")
            for scheme in context.glob("schemes/[0-9]*"):
                if _read(scheme / "action") == "pageout":
                    found.append(_number(scheme / "access_pattern/age/min") * interval_us / 1e6)
    return found


def _read_module(root: Path) -> list[float]:
    """Returns the age from the settings of the kernel module damon_reclaim, which are in microseconds."""
    parameters = root / "sys/module/damon_reclaim/parameters"
    return [_number(parameters / "min_age") / 1e6] if _read(parameters / "enabled") == "Y" else []


def _number(path: Path) -> float:
    text = _read(path)
    return float(text) if text.isdecimal() else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
