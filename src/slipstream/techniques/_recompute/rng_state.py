"""Snapshots of what a module call may change. `RngState` captures, compares and restores all random generators: torch's
on the host and one device, Python's and NumPy's.

`ModuleSnapshot` lets a call of the script's module be repeated: it restores the buffers and the random state that a
failed attempt changed.
"""

from __future__ import annotations

import pickle
import random
import sys
from types import TracebackType
from typing import Any

import torch


class RngState:
    def __init__(self, device: str) -> None:
        """Captures the present state. `device`: cpu, cuda, ..."""
        self._device: Any = torch.get_device_module(device) if device not in ("cpu", "meta") else None
        self._python = random.getstate()
        self._numpy = _numpy().get_state(legacy=False) if _numpy() is not None else None
        self._host = torch.get_rng_state()
        self._on_device: Any = self._device.get_rng_state() if self._device is not None else None

    def put_back(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            _numpy().set_state(self._numpy)
        torch.set_rng_state(self._host)
        if self._device is not None:
            self._device.set_rng_state(self._on_device)

    def is_as_now(self) -> bool:
        """Whether nothing was drawn since."""
        if random.getstate() != self._python or not torch.equal(torch.get_rng_state(), self._host):
            return False
        if self._device is not None and not torch.equal(self._device.get_rng_state(), self._on_device):
            return False
        return self._numpy is None or pickle.dumps(_numpy().get_state(legacy=False)) == pickle.dumps(self._numpy)


def _numpy() -> Any:
    """Returns numpy only if the script has imported it."""
    return getattr(sys.modules.get("numpy"), "random", None)


class ModuleSnapshot:
    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __enter__(self) -> ModuleSnapshot:
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
