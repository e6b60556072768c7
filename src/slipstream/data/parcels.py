"""Bytes that travel beside a tensor of floats: from the worker that packed them inside the tensor's own pickle, through
pinning, until the script asks for the tensor on the device. The batch itself stays as the loader made it."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from slipstream.data.handouts import Handouts
from slipstream.data.packing import Packed
from slipstream.seams.patch import Patches

_receiver: list[Parcels] = []  # where tensors that are unpickled here leave their bytes


class Parcels:
    def __init__(self) -> None:
        self._tensors = Handouts()
        self._pin = torch.Tensor.pin_memory

    def install(self, patches: Patches) -> None:
        reducers: dict[Any, Any] = vars(ForkingPickler)["_extra_reducers"]
        original = reducers[torch.Tensor]
        reducers[torch.Tensor] = self._reducing(original)
        patches.on_close(lambda: reducers.update({torch.Tensor: original}))
        _receiver.append(self)
        patches.on_close(lambda: _receiver.remove(self))
        patches.around(torch.Tensor, "pin_memory", "parcels.pin", None, self._after_pin)

    def add(self, tensor: torch.Tensor, packed: Packed) -> None:
        self._tensors.add(tensor, (packed, tensor._version))

    def of(self, tensor: torch.Tensor) -> Packed | None:
        """None also where the tensor was changed since."""
        packed, version = self._tensors.note_on(tensor) or (None, None)
        return packed if version == tensor._version else None

    def _reducing(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def reduce(tensor: Any) -> Any:
            packed = self.of(tensor)
            return original(tensor) if packed is None else (receive, (*original(tensor), *packed))

        return reduce

    def _after_pin(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        packed = self.of(args[0])
        if packed is not None:
            self.add(result, Packed(*(self._pin(part) for part in packed)))


def receive(rebuild: Callable[..., Any], args: tuple[Any, ...], levels: Any, tables: Any) -> Any:
    """In the process that reads the batch: the tensor as torch rebuilds it."""
    tensor = rebuild(*args)
    for parcels in _receiver:
        parcels.add(tensor, Packed(levels, tables))
    return tensor
