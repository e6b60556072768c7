"""Queries of the device: how much memory is free, and on CUDA how much the caching allocator holds besides the tensors.
The CUDA parts have not been run on a GPU yet."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.machine.free_memory import free_bytes


def device_of(models: list[Any]) -> str:
    """Returns the device of most of the parameters."""
    sizes: dict[str, int] = {}
    for model in models:
        for parameter in model.parameters():
            sizes[str(parameter.device)] = sizes.get(str(parameter.device), 0) + parameter.numel()
    return max(sizes, key=lambda device: sizes[device], default="cpu")


def counts_everything(device: str) -> bool:
    """Whether the allocator counts from the start of the process on. Caching allocators do, and the CPU's allocator
    counts only under a profiler."""
    return not device.startswith("cpu")


def read_room_bytes(device: str) -> int:
    """Returns how many more bytes tensors could use than those that are alive, or 0 if this is not known."""
    if device == "cpu":
        return free_bytes()
    if device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return 0


def read_split_bytes(device: str) -> int:
    """Returns the largest number so far of reserved bytes that are free, but in segments that are partly in use
    (fragmentation)."""
    if not device.startswith("cuda"):
        return 0
    return int(torch.cuda.memory_stats(device).get("inactive_split_bytes.all.peak", 0))


def profiled_device(device: str) -> str | None:
    """Returns the type of the device that the profiler must follow besides the CPU, or None."""
    return device.partition(":")[0] if device.startswith(("cuda", "xpu")) else None
