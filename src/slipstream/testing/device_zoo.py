"""Scripts with a known limit on a device, and what `check` must say about each. They need CUDA, real or simulated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "zoo" / "on_device"


@dataclass(frozen=True)
class DeviceCase:
    name: str
    bound: str
    phase: str  # the longest one on the device
    causes: tuple[str, ...] = ()  # one of these is the first finding; empty: no finding promises more than `gain`
    gain: float = 1.15  # the largest gain that may be predicted where nothing is to be found
    idle: tuple[str, ...] = ()  # in one of these phases the device waits longest for the host; empty: it is busy
    copy_gb_per_s: float = 0.0  # of the simulated device; 0: as fast as the CPU copies

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.py"


_INPUT = ("no_workers", "slow_read", "slow_transform", "worker_count")

CASES = (
    DeviceCase("compute_bound", "compute", "backward"),
    DeviceCase("compute_item", "compute", "backward"),
    DeviceCase("compute_pinned", "compute", "backward"),
    DeviceCase("input_bound", "input", "input", _INPUT, idle=("input",)),
    DeviceCase("transfer_bound", "compute", "transfer", ("pageable_transfer",), copy_gb_per_s=0.1),
    DeviceCase("launch_bound", "compute", "backward", ("tiny_operations",), idle=("forward", "backward")),
    DeviceCase("optimizer_bound", "compute", "optimizer", ("unfused_optimizer",)),
    DeviceCase("sync_bound", "other", "other", ("frequent_sync",), idle=("other",)),
)
