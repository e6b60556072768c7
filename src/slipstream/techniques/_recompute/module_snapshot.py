"""Lets a call of the script's module be repeated: restores the buffers and torch's random state that a failed attempt
changed."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from slipstream.seams.rng_state import RngState, torch_generators


class ModuleSnapshot:
    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __enter__(self) -> ModuleSnapshot:
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in self._module.buffers()]
        self._rng_state = RngState(torch_generators(next(self._module.parameters()).device.type))
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: Any, trace: TracebackType | None) -> None:
        self._buffers.clear()

    def rewind(self) -> None:
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)
        self._rng_state.restore()
