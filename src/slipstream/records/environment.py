"""The machine and the software that a session was measured on, and the git commit of the user's source when the session
began."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.site import Site


class Gpu(msgspec.Struct, frozen=True):
    name: str
    memory_bytes: int
    capability: str = ""
    driver: str = ""


class GpuReading(msgspec.Struct, frozen=True):
    """A sample taken through NVML while the script ran."""

    time_ns: int
    index: int
    utilisation: float  # 0 to 1
    memory_bytes: int
    power_w: float


class LoadSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many of the usable cores other programs used in an interval of time. Times are read from the host's clock."""

    start_ns: int
    end_ns: int
    cores: float


class TorchFacts(msgspec.Struct, frozen=True):
    """Facts that only the script's process knows."""

    version: str
    cpu_capability: str  # AVX2, AVX512, ...
    num_threads: int
    num_interop_threads: int
    accelerator: str  # cuda, mps, xpu; "": none
    accelerator_build: str  # CUDA or ROCm version torch was built for; "" for a CPU build
    device: str  # the model's device: cpu, cuda:0
    has_fast_bf16: bool
    has_fast_fp16: bool
    has_tf32: bool
    matmul_precision: str
    cudnn_benchmark: bool
    deterministic: bool
    flush_denormal: bool | None = None
    autocast_seen: bool = False  # whether the script itself enters autocast
    threads_site: Site | None = None  # the user's line that calls torch.set_num_threads
    device_name: str = ""  # torch's name of the accelerator that the model is on
    device_bytes: int = 0  # memory of this accelerator


class IdleGpu(msgspec.Struct, frozen=True):
    """A GPU that the script does not use."""

    name: str
    # cpu_build: torch was built for the CPU only. invisible: torch cannot see the GPU. unused: the model is on the CPU.
    cause: Literal["cpu_build", "invisible", "unused"]


class Environment(msgspec.Struct, frozen=True):
    system: str
    python: str
    slipstream: str
    cpu: str
    num_cores: int  # physical cores
    num_logical: int
    num_usable: float  # cores that affinity and the container's quota allow
    memory_bytes: int
    memory_limit_bytes: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None
    disk_kind: str  # the disk of the working directory: "ssd", "hdd", "network", "memory", "unknown"
    load: float  # one-minute load average when the session began
    gpus: list[Gpu] = []
    torch: TorchFacts | None = None
    readings: list[GpuReading] = []
    variables: dict[str, str] = {}  # environment variables that affect the speed of libraries
    idle_file_s: float | None = None  # seconds without use after which the system drops a file from the page cache
    libraries: dict[str, str] = {}  # versions of lightning, transformers, ... if the script imports them


class Revision(msgspec.Struct, frozen=True):
    commit: str  # full hash
    is_changed: bool = False  # whether tracked files differed from the commit

    def __str__(self) -> str:
        return self.commit[:9] + ("+" if self.is_changed else "")
