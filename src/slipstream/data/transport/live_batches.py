"""The tensors of batches that loaders handed out and the script still holds. Keeps none of them alive."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class LiveBatches:
    """By identity: a tensor's `==` compares its elements."""

    def __init__(self) -> None:
        self._references: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}

    def __len__(self) -> int:
        return len(self._references)

    def add(self, tensor: torch.Tensor, note: Any = None) -> None:
        key = id(tensor)
        self._references[key] = weakref.ref(tensor, lambda _: self._references.pop(key, None)), note

    def note_on(self, tensor: torch.Tensor) -> Any:
        """What was noted when it was handed out; None for a tensor that was not."""
        reference, note = self._references.get(id(tensor), (None, None))
        return note if reference is not None and reference() is tensor else None

    def holds(self, tensor: torch.Tensor) -> bool:
        """The tensor itself, or a view of one."""
        return self._has(tensor) or (tensor._base is not None and self._has(tensor._base))

    def _has(self, tensor: torch.Tensor) -> bool:
        reference, _ = self._references.get(id(tensor), (None, None))
        return reference is not None and reference() is tensor
