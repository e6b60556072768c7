"""Restores what a call of the script's module has changed, so that the call can be repeated. `ModuleSnapshot` covers
the buffers and torch's random state. `ModuleState` covers the attributes that are tensors, numbers or containers."""

from __future__ import annotations

from collections import deque
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


_CONTAINERS = (list, dict, set, deque)
_OF_TORCH = ("_parameters", "_buffers", "_modules")


class ModuleState:
    """The attributes of a module and its submodules that are tensors, numbers or containers. Other objects are not
    examined. A tensor that is changed in place, or a container that is changed and keeps its length, is not noticed."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._layers = [(layer, dict(vars(layer)), _attributes(layer)) for layer in module.modules()]
        held = [value for _, _, attributes in self._layers for value in attributes.values()]
        self._contents = [(value, value.copy()) for value in held if type(value) in _CONTAINERS]

    def has_new_tensor(self) -> bool:
        return any(
            isinstance(value, torch.Tensor) and before.get(name) is not value
            for layer, _, before in self._layers
            for name, value in _attributes(layer).items()
        )

    def has_changed(self) -> bool:
        return any(_tokens(before) != _tokens(_attributes(layer)) for layer, _, before in self._layers) or any(
            len(value) != len(content) for value, content in self._contents
        )

    def restore(self) -> None:
        for value, content in self._contents:
            if len(value) != len(content):
                value.clear()
                (value.update if isinstance(value, (dict, set)) else value.extend)(content)
        for layer, everything, before in self._layers:
            now = vars(layer)
            for name in before.keys() | _attributes(layer).keys():
                if name not in everything:
                    del now[name]
                elif now.get(name) is not everything[name]:
                    now[name] = everything[name]


def _attributes(layer: torch.nn.Module) -> dict[str, Any]:
    kinds = (torch.Tensor, int, float, *_CONTAINERS)
    return {
        name: value for name, value in vars(layer).items() if issubclass(type(value), kinds) and name not in _OF_TORCH
    }


def _tokens(attributes: dict[str, Any]) -> dict[str, Any]:
    """Returns numbers by value and everything else by identity. Bools are left out, because many modules set one after
    their first call."""
    return {
        name: value if type(value) in (int, float) else id(value)
        for name, value in attributes.items()
        if type(value) is not bool
    }
