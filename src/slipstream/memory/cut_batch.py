"""Makes a smaller batch from a larger one: the first samples of everything in it. Returns None if a batch cannot be
cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

from slipstream.seams.batches import count_samples

_MAX_DEPTH = 6


class _UncuttableError(Exception):
    pass


def cut_batch(batch: Any, wanted: int) -> Any:
    """Returns the first `wanted` samples in their own memory, the batch itself if it has no more samples, or None if it
    cannot be cut."""
    size = count_samples(batch)
    if size <= wanted:
        return batch if size else None
    try:
        return _cut(batch, size, wanted, 0)
    except _UncuttableError:
        return None


def _cut(part: Any, size: int, wanted: int, depth: int) -> Any:
    def cut_inner(inner: Any) -> Any:
        return _cut(inner, size, wanted, depth + 1)

    if depth > _MAX_DEPTH:
        raise _UncuttableError
    if isinstance(part, torch.Tensor):
        return _cut_tensor(part, size, wanted)
    if isinstance(part, (str, bytes, int, float, bool, type(None))):
        return part
    if isinstance(part, MutableMapping):
        cut = copy.copy(part)
        for key, value in part.items():
            cut[key] = cut_inner(value)
        return cut
    if type(part) is list or isinstance(part, tuple):
        return _cut_sequence(part, size, wanted, cut_inner)
    raise _UncuttableError  # an object of the script's own class, whose structure is not known


def _cut_tensor(tensor: torch.Tensor, size: int, wanted: int) -> torch.Tensor:
    if not tensor.dim() or tensor.shape[0] != size:
        return tensor
    cut = tensor[:wanted].clone()  # a view would keep the whole batch alive
    return cut.pin_memory() if tensor.device.type == "cpu" and tensor.is_pinned() else cut


def _cut_sequence(part: Any, size: int, wanted: int, cut_inner: Callable[[Any], Any]) -> Any:
    is_samples = len(part) == size and not isinstance(part[0], torch.Tensor)
    parts = [cut_inner(inner) for inner in (part[:wanted] if is_samples else part)]
    if type(part) in (list, tuple):
        return type(part)(parts)
    if hasattr(part, "_fields"):
        return type(part)(*parts)
    raise _UncuttableError
