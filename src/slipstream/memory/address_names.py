"""Names for addresses: the storages of parameters, gradients, optimizer state and inputs, and of every other tensor
that Python knows. Only parameters, buffers and optimizers are kept alive, until `forget`. The name of any other tensor
is valid only at the moment of the query."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from slipstream.memory.allocations import Name
from slipstream.observe.anatomy.modules import ModuleEntry
from slipstream.seams.nested import walk_tensors


class AddressNames:
    """All named storages on one device."""

    def __init__(self, entries: list[ModuleEntry], optimizers: list[Any], device: str) -> None:
        self._device = device
        self._optimizers = optimizers
        self.owners: dict[int, int] = {}  # id of a parameter to the module that owns it
        self._weights: list[tuple[torch.Tensor, int]] = []
        for index, entry in enumerate(entries):
            own = [*entry.module._parameters.values(), *entry.module._buffers.values()]
            for tensor in own:
                if tensor is not None and id(tensor) not in self.owners:
                    self.owners[id(tensor)] = index
                    self._weights.append((tensor, index))
        for optimizer in optimizers:  # parameters of modules that were not called
            for parameter in _parameters(optimizer):
                if id(parameter) not in self.owners:
                    self.owners[id(parameter)] = -1
                    self._weights.append((parameter, -1))

    def forget(self) -> None:
        self.owners, self._weights, self._optimizers = {}, [], []

    def weights(self) -> Iterator[Name]:
        for tensor, module in self._weights:
            yield from self.name(tensor, "parameters", module)

    def gradients(self) -> Iterator[Name]:
        for tensor, module in self._weights:
            if tensor.is_leaf and tensor.grad is not None:
                yield from self.name(tensor.grad, "gradients", module)

    def optimizer_state(self) -> Iterator[Name]:
        for optimizer in self._optimizers:
            for parameter, state in list(optimizer.state.items()):
                for _, tensor in walk_tensors(state):
                    yield from self.name(tensor, "optimizer_state", self.owners.get(id(parameter), -1))

    def inputs(self, batch: Any) -> Iterator[Name]:
        """Yields names for all tensors inside `batch`, which may be any structure."""
        for _, tensor in walk_tensors(batch):
            yield from self.name(tensor, "inputs", -1)

    def everything(self) -> Iterator[Name]:
        """Yields names for all tensors. Parameters, optimizer state and gradients come first, because an address keeps
        its first name."""
        yield from self.weights()
        yield from self.optimizer_state()
        yield from self.gradients()
        for thing in gc.get_objects():
            # isinstance would ask objects for __class__, and for some objects that runs code.
            if issubclass(type(thing), torch.Tensor):
                yield from self.name(thing, "other", -1)

    def name(self, tensor: torch.Tensor, kind: str, module: int) -> Iterator[Name]:
        try:
            storage = _storage(tensor)
            if str(tensor.device) == self._device and storage is not None:
                yield Name(storage.data_ptr(), storage.nbytes(), kind, module)
        # Sparse, fake and functional tensors have no storage.
        except (RuntimeError, NotImplementedError, AttributeError):
            return


def _storage(tensor: torch.Tensor) -> Any:
    """Returns the storage, or None if it is empty or only maps a file."""
    storage = tensor.untyped_storage()
    return storage if storage.nbytes() and storage.filename is None else None


def _parameters(optimizer: Any) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
