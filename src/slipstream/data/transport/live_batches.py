"""The tensors of batches that loaders returned and that the script still holds. This module holds only weak references
to them."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class LiveBatches:
    """A weak mapping from tensors to notes, by identity, because a tensor's `==` compares its elements."""

    def __init__(self) -> None:
        self._references: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}

    def __len__(self) -> int:
        return len(self._references)

    def add(self, tensor: torch.Tensor, note: Any = None) -> None:
        key = id(tensor)
        self._references[key] = weakref.ref(tensor, lambda _: self._references.pop(key, None)), note

    def note_on(self, tensor: torch.Tensor) -> Any:
        """Returns the note that was added with the tensor, or None if the tensor was not added."""
        reference, note = self._references.get(id(tensor), (None, None))
        return note if reference is not None and reference() is tensor else None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor, or the tensor that it is a view of, was added."""
        return self._has(tensor) or (tensor._base is not None and self._has(tensor._base))

    def _has(self, tensor: torch.Tensor) -> bool:
        reference, _ = self._references.get(id(tensor), (None, None))
        return reference is not None and reference() is tensor
