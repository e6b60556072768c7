"""Copies to a device on a separate stream while the device computes. Each copy has an event."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Device(Protocol):
    def accepts(self, device: torch.device) -> bool:
        """Whether `start` supports copies to this device."""
        ...

    def start(self, tensor: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Any]:
        """Starts a copy in parallel to everything that is running. Returns the copy and a ticket for its completion."""
        ...

    def receive(self, copy: torch.Tensor, ticket: Any) -> None:
        """Makes the work that the caller submits from now on wait for the copy."""
        ...


class Accelerator:
    """CUDA, ROCm and XPU, which have streams."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}
        self._to = torch.Tensor.to  # the original, because the prefetcher wraps this method

    def accepts(self, device: torch.device) -> bool:
        return device.type in ("cuda", "xpu")

    def start(self, tensor: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Any]:
        module = torch.get_device_module(device)
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = module.Stream(device=device)
        with module.stream(stream):
            copy = self._to(tensor, device, non_blocking=True)
            return copy, stream.record_event()

    def receive(self, copy: torch.Tensor, ticket: Any) -> None:
        current = torch.get_device_module(copy.device).current_stream(copy.device)
        current.wait_event(ticket)
        # The memory belongs to the copy stream. The allocator must not reuse it while the current stream reads it.
        copy.record_stream(current)
