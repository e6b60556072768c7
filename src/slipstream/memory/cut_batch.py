"""A smaller batch out of a larger one: the first samples of everything in it. What cannot be cut says so by None."""

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
    """The first `wanted` samples, in memory of their own; the batch itself if it has no more; None: cannot be cut."""
    size = count_samples(batch)
    if size <= wanted:
        return batch if size else None
    try:
        return _cut(batch, size, wanted, 0)
    except _UncuttableError:
        return None


def _cut(part: Any, size: int, wanted: int, depth: int) -> Any:
    def again(inner: Any) -> Any:
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
            cut[key] = again(value)
        return cut
    if type(part) is list or isinstance(part, tuple):
        return _cut_sequence(part, size, wanted, again)
    raise _UncuttableError  # an object of the script's own: who knows what hangs together in it


def _cut_tensor(tensor: torch.Tensor, size: int, wanted: int) -> torch.Tensor:
    if not tensor.dim() or tensor.shape[0] != size:
        return tensor
    cut = tensor[:wanted].clone()  # a view would keep the whole batch alive
    return cut.pin_memory() if tensor.device.type == "cpu" and tensor.is_pinned() else cut


def _cut_sequence(part: Any, size: int, wanted: int, again: Callable[[Any], Any]) -> Any:
    is_samples = len(part) == size and not isinstance(part[0], torch.Tensor)
    parts = [again(inner) for inner in (part[:wanted] if is_samples else part)]
    if type(part) in (list, tuple):
        return type(part)(parts)
    if hasattr(part, "_fields"):
        return type(part)(*parts)
    raise _UncuttableError
