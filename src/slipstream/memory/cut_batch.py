"""Makes a smaller batch from the first samples of a larger batch."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch

from slipstream.seams.batches import count_samples
from slipstream.seams.nested import rebuild, take_apart

_MAX_DEPTH = 6


class _UncuttableError(Exception):
    pass


def cut_batch(batch: Any, wanted: int) -> Any:
    """Returns the first `wanted` samples, copied to memory of their own. Returns the batch itself if it has no more
    samples, and None if it cannot be cut."""
    size = count_samples(batch)
    if size <= wanted:
        return batch if size else None
    try:
        return _cut(batch, size, wanted, 0)
    except _UncuttableError:
        return None


def _cut(part: Any, size: int, wanted: int, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise _UncuttableError
    if isinstance(part, torch.Tensor):
        return _cut_tensor(part, size, wanted)
    if isinstance(part, (str, bytes, int, float, bool, type(None))):
        return part
    taken = take_apart(part) if type(part) is list or isinstance(part, (tuple, MutableMapping)) else None
    if taken is None:
        raise _UncuttableError  # an object of the script's own class, whose structure is not known
    parts, context = list(taken[0]), taken[1]
    if len(parts) == size and not isinstance(part, MutableMapping) and not isinstance(parts[0], torch.Tensor):
        parts = parts[:wanted]  # a list of samples
    cut = rebuild(part, [_cut(inner, size, wanted, depth + 1) for inner in parts], context)
    if cut is part:
        raise _UncuttableError
    return cut


def _cut_tensor(tensor: torch.Tensor, size: int, wanted: int) -> torch.Tensor:
    if not tensor.dim() or tensor.shape[0] != size:
        return tensor
    cut = tensor[:wanted].clone()  # a view would keep the whole batch alive
    return cut.pin_memory() if tensor.device.type == "cpu" and tensor.is_pinned() else cut
