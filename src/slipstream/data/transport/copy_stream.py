"""A device that copies while it computes: a stream of its own for copies, and an event for each."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Device(Protocol):
    def accepts(self, device: torch.device) -> bool:
        """Whether copies to this device are ours to start."""
        ...

    def start(self, tensor: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Any]:
        """Begins a copy beside everything that is running; the copy, and a ticket for its end."""
        ...

    def receive(self, copy: torch.Tensor, ticket: Any) -> None:
        """From here on the caller's work may use the copy."""
        ...


class Accelerator:
    """CUDA, ROCm and XPU: what has streams."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}
        self._to = torch.Tensor.to  # bare: by the time of a copy we stand around it ourselves

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
        copy.record_stream(current)  # its memory belongs to the copying stream: not given away while this one reads
