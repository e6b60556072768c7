"""Finds what autograd keeps for a pending backward pass. These are the tensors that live graphs have saved, each with
the module whose weight its operation uses or follows. Tensors that a hook would have to unpack are left out, because
hooks compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

_MOST_NODES: Final = 500_000
_SAVED: Final = "_raw_saved_"
# Nodes that may be between a weight and the operation that uses the weight.
_LOOKS: Final = ("TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ToCopyBackward0")


class Graph:
    """Walks autograd graphs. `owners` maps the id of a parameter to the index of its module."""

    def __init__(self, roots: Iterable[Any], owners: Mapping[int, int]) -> None:
        self._owners = owners
        self._modules: dict[Any, int] = {}  # maps a node to its module; -1: the node is before the first weight
        self._names: dict[type, list[str]] = {}
        for root in roots:
            self._walk(root)

    def saved(self) -> Iterator[tuple[torch.Tensor, int]]:
        for node, module in self._modules.items():
            for tensor in self._saved_by(node):
                yield tensor, module

    def _walk(self, root: Any) -> None:
        """Visits the nodes of a graph. A node is visited after its inputs."""
        todo = [(root, False)]
        while todo and len(self._modules) < _MOST_NODES:
            node, is_ready = todo.pop()
            if node in self._modules:
                continue
            before = [one for one, _ in node.next_functions if one is not None]
            if is_ready:
                self._modules[node] = self._module_of(node, before)
            else:
                todo += [(node, True), *((one, False) for one in before if one not in self._modules)]

    def _module_of(self, node: Any, before: list[Any]) -> int:
        """Returns the module of the node's weight. For a node without a weight, returns the module of the last
        operation before it."""
        if (weight := getattr(node, "variable", None)) is not None:
            return self._owners.get(id(weight), -1)
        weights = [self._modules.get(one, -1) for one in before if _is_weight(one)]
        if owned := [module for module in weights if module >= 0]:
            return owned[0]
        last = max(before, key=lambda one: int(one._sequence_nr()), default=None)
        return self._modules.get(last, -1)

    def _saved_by(self, node: Any) -> Iterator[torch.Tensor]:
        names = self._names.get(type(node))
        if names is None:
            names = self._names[type(node)] = [name for name in dir(node) if name.startswith(_SAVED)]
        for name in names:
            try:
                raw = getattr(node, name)
                for one in raw if isinstance(raw, (list, tuple)) else [raw]:
                    if one.unpack_hook is None and isinstance(one.data, torch.Tensor):
                        yield one.data
            # The tensor was freed by backward, does not exist, or is not exposed by this version of torch.
            except (RuntimeError, AttributeError):
                continue


def _is_weight(node: Any) -> bool:
    if hasattr(node, "variable"):
        return True
    return node.name() in _LOOKS and any(one is not None and _is_weight(one) for one, _ in node.next_functions)
