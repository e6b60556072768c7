"""Scripts with a known limit on a device, and what `check` must report about each script. The scripts need CUDA, real
or simulated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "zoo" / "on_device"


@dataclass(frozen=True)
class DeviceCase:
    name: str
    bound: str
    phase: str  # The longest phase on the device
    # The first finding must have one of these causes. Empty: no finding may predict more than `gain`.
    causes: tuple[str, ...] = ()
    gain: float = 1.15  # The largest gain that a finding may predict if `causes` is empty
    # The device waits longest for the host in one of these phases. Empty: the device is busy.
    idle: tuple[str, ...] = ()
    copy_gb_per_s: float = 0.0  # Speed of copies to the simulated device; 0: as fast as the CPU copies

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
    DeviceCase("optimizer_bound", "compute", "optimizer", ("unfused_optimizer",), idle=("optimizer",)),
    DeviceCase("sync_bound", "other", "other", ("frequent_sync",), idle=("other",)),
)
