"""Finds the repeated blocks of a model by its structure: children of one list or sequence with the same class and the
same shapes of weights. No model is known by name."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

_FEWEST = 3  # equal blocks, for a repetition
_MOST_OF_IT = 0.5  # of the model's weights


def find_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the blocks in their order, or [] if they do not hold most of the model. Blocks inside blocks are not
    searched."""
    found: list[torch.nn.Module] = []
    inside: set[torch.nn.Module] = set()
    for container in module.modules():
        if container in inside or not isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        for group in _alike(container):
            found += group
            inside |= {part for block in group for part in block.modules()}
    if any(map(torch.nn.parameter.is_lazy, module.parameters())):
        return []  # lazy weights: their size is not known yet
    weight = sum(parameter.numel() for parameter in module.parameters())
    held = {parameter for block in found for parameter in block.parameters()}
    return found if sum(parameter.numel() for parameter in held) > _MOST_OF_IT * weight else []


def _alike(container: torch.nn.Module) -> list[list[torch.nn.Module]]:
    groups: dict[Any, list[torch.nn.Module]] = defaultdict(list)
    for child in dict.fromkeys(container.children()):
        shapes = tuple(tuple(parameter.shape) for parameter in child.parameters())
        is_block = shapes and sum(1 for _ in child.modules()) >= 3  # a single layer stores only its input anyway
        if is_block:
            groups[type(child), shapes].append(child)
    return [group for group in groups.values() if len(group) >= _FEWEST]
