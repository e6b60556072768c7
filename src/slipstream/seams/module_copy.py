"""A copy of the script's model, with what it keeps of its last call: python's own refuses tensors that have a graph,
such as a loss that a model remembers. Copies values, never graphs."""

from __future__ import annotations

import copy
from typing import Any

import torch

from slipstream.seams.batches import walk_tensors


def copy_module(module: torch.nn.Module) -> torch.nn.Module:
    remembered: dict[int, Any] = {}
    for part in module.modules():
        for _, tensor in walk_tensors(vars(part)):
            if not tensor.is_leaf:
                remembered[id(tensor)] = tensor.detach().clone()
    return copy.deepcopy(module, remembered)
