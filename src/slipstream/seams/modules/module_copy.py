"""Copies the script's model together with the tensors that the model keeps from its last call. `copy.deepcopy` alone
raises an error for a tensor that has a graph, such as a stored loss. Here values are copied and graphs are not."""

from __future__ import annotations

import copy
from typing import Any

import torch

from slipstream.seams.nested import walk_tensors


def copy_module(module: torch.nn.Module) -> torch.nn.Module:
    copies: dict[int, Any] = {}
    for part in module.modules():
        for _, tensor in walk_tensors(vars(part)):
            if not tensor.is_leaf:
                copies[id(tensor)] = tensor.detach().clone()
    return copy.deepcopy(module, copies)
