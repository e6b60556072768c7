"""A call of the script's module that may have to be made a second time: what the first attempt changed without leaving
a result, its buffers and the random numbers drawn, can be put back."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch


class Trial:
    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __enter__(self) -> Trial:
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in self._module.buffers()]
        self._host = torch.get_rng_state()
        kind = next(self._module.parameters()).device.type
        self._device: Any = torch.get_device_module(kind) if kind not in ("cpu", "meta") else None
        self._on_device = self._device.get_rng_state() if self._device is not None else None
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: Any, trace: TracebackType | None) -> None:
        self._buffers.clear()

    def rewind(self) -> None:
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)
        torch.set_rng_state(self._host)
        if self._device is not None:
            self._device.set_rng_state(self._on_device)
