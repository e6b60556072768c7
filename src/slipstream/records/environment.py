"""The machine and the software that a session was measured on.

Where the user's source stood in git when a session began."""

from __future__ import annotations

import msgspec

from slipstream.records.site import Site


class Gpu(msgspec.Struct, frozen=True):
    name: str
    memory_bytes: int
    capability: str = ""
    driver: str = ""


class GpuReading(msgspec.Struct, frozen=True):
    """Sampled through NVML while the script ran."""

    time_ns: int
    index: int
    utilisation: float  # 0 to 1
    memory_bytes: int
    power_w: float


class TorchFacts(msgspec.Struct, frozen=True):
    """What only the rider's own process knows."""

    version: str
    cpu_capability: str  # AVX2, AVX512, ...
    num_threads: int
    num_interop_threads: int
    accelerator: str  # cuda, mps, xpu; "" without
    accelerator_build: str  # CUDA or ROCm version torch was built for; "" for a CPU build
    device: str  # where the model lives: cpu, cuda:0
    has_fast_bf16: bool
    has_fast_fp16: bool
    has_tf32: bool
    matmul_precision: str
    cudnn_benchmark: bool
    deterministic: bool
    flush_denormal: bool | None = None
    autocast_seen: bool = False  # the script enters autocast itself
    threads_site: Site | None = None  # the user's torch.set_num_threads( line


class Environment(msgspec.Struct, frozen=True):
    system: str
    python: str
    slipstream: str
    cpu: str
    num_cores: int  # physical
    num_logical: int
    num_usable: float  # after affinity and the container's quota
    memory_bytes: int
    memory_limit_bytes: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None
    disk_kind: str  # "ssd", "hdd", "network", "memory", "unknown": where the working directory lives
    load: float  # one-minute load average when the session began
    gpus: list[Gpu] = []
    torch: TorchFacts | None = None
    readings: list[GpuReading] = []
    variables: dict[str, str] = {}  # of the environment, those that libraries take their speed from
    idle_file_s: float | None = None  # the system drops what it keeps of files that were not used for so long
    libraries: dict[str, str] = {}  # lightning, transformers, ... as imported by the script


class Revision(msgspec.Struct, frozen=True):
    commit: str  # in full
    is_changed: bool = False  # files that git knows differed from it

    def __str__(self) -> str:
        return self.commit[:9] + ("+" if self.is_changed else "")
