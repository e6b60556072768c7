"""Separates the arguments and results of a call into tensors and the structure around the tensors. Splits and joins the
tensors along the batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from slipstream.seams.nested import leaves_of, map_tensors, tensors_of
from slipstream.techniques._recompute.record_random import RefusedError

PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, slice, range)


def frame_of(thing: Any) -> Any:
    """Returns the structure without its tensors. The structure keeps no tensor alive."""
    place = torch.empty(0)
    return map_tensors(thing, lambda tensor: place)


def filled(frame: Any, tensors: Sequence[torch.Tensor]) -> Any:
    left = iter(tensors)
    thing = map_tensors(frame, lambda tensor: next(left))
    if next(left, None) is not None or any(a is not b for a, b in zip(tensors_of(thing), tensors, strict=True)):
        raise RefusedError(f"{type(frame).__name__} cannot be taken apart and rebuilt")
    return thing


def others_in(thing: Any) -> list[Any]:
    """Returns everything that is neither a tensor nor a structure around tensors."""
    return [leaf for leaf in leaves_of(thing) if not isinstance(leaf, torch.Tensor)]


def has_rows(tensor: torch.Tensor) -> bool:
    """Whether the tensor has rows in its storage. False for sparse and nested tensors."""
    return tensor.layout == torch.strided and not tensor.is_nested


class Cut:
    """Tells which tensors of a call hold one row per sample. The other tensors are passed to every piece unchanged.
    Raises RefusedError for tensors that cannot be split."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        if not all(map(has_rows, tensors)):
            raise RefusedError("sparse and nested tensors cannot be split into pieces")
        first = next((tensor for tensor in tensors if tensor.dim()), None)
        self.is_cut = [tensor.dim() > 0 and first is not None and len(tensor) == len(first) for tensor in tensors]

    def length(self, tensors: Sequence[torch.Tensor]) -> int:
        """Returns the number of samples of a later batch, or 0 if it has another structure."""
        lengths = {len(tensor) if tensor.dim() else 0 for tensor, cut in zip(tensors, self.is_cut, strict=True) if cut}
        return lengths.pop() if len(lengths) == 1 else 0

    def piece(self, tensors: Sequence[torch.Tensor], start: int, stop: int) -> list[torch.Tensor]:
        return [tensor[start:stop] if cut else tensor for tensor, cut in zip(tensors, self.is_cut, strict=True)]


def bounds(length: int, num_pieces: int) -> list[tuple[int, int]]:
    """Returns nearly equal spans. There are at most as many spans as samples."""
    num = min(num_pieces, length)
    edges = [length * index // num for index in range(num + 1)]
    return list(pairwise(edges))


def joined(results: Sequence[Any], spans: Sequence[tuple[int, int]]) -> Any:
    """Returns one result for the whole batch."""
    columns = [tensors_of(result) for result in results]
    for (start, stop), column in zip(spans, columns, strict=True):
        if len(column) != len(columns[0]) or any(not one.dim() or len(one) != stop - start for one in column):
            raise RefusedError("its results do not have one row for each sample")
    if any(len({tuple(one.shape[1:]) for one in rows}) > 1 for rows in zip(*columns, strict=True)):
        raise RefusedError("its results have different sizes for different samples")
    return filled(results[0], [torch.cat(rows) for rows in zip(*columns, strict=True)])
