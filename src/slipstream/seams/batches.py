"""Reads a batch without changing it: its number of samples and its tensors. Also copies a batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from slipstream.records import TensorFacts

_Tensor = torch.Tensor  # looked up once, because count_samples is called at every step
_MAX_DEPTH = 6
_MAX_TENSORS = 32


def walk_tensors(batch: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every tensor in nested mappings, sequences and plain objects, with its path."""
    if isinstance(batch, torch.Tensor):
        yield path, batch
    elif depth < _MAX_DEPTH:
        if isinstance(batch, Mapping):
            for key, value in batch.items():
                yield from walk_tensors(value, f"{path}[{key!r}]", depth + 1)
        elif isinstance(batch, (list, tuple)):
            for position, value in enumerate(batch[:_MAX_TENSORS]):
                yield from walk_tensors(value, f"{path}[{position}]", depth + 1)
        elif hasattr(batch, "__dict__") and not isinstance(batch, (type, torch.nn.Module)):
            for key, value in list(vars(batch).items())[:_MAX_TENSORS]:
                yield from walk_tensors(value, f"{path}.{key}", depth + 1)


def count_samples(batch: Any) -> int:
    """Returns the number of samples in a batch: the leading dimension of the first tensor that has one, else the length
    of the first list. Returns 0 if the number is not known. Batches of graphs report their own number (`num_graphs`),
    because the leading dimension of their tensors is the number of nodes or of edges, or two."""
    if (type(batch) is list or type(batch) is tuple) and batch:
        first = batch[0]
        if type(first) is _Tensor and (shape := first.shape):  # by far the most common batch
            return int(shape[0])
    if isinstance(batch, _Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], (str, bytes)):
        return len(batch)
    graphs = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    num_graphs = None if isinstance(graphs, Mapping) else getattr(graphs, "num_graphs", None)
    if type(num_graphs) is int:
        return num_graphs
    for _, tensor in walk_tensors(batch):
        if tensor.dim():
            return int(tensor.shape[0])
    return len(batch) if isinstance(batch, (list, tuple)) else 0


def count_bytes(batch: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in walk_tensors(batch))


def describe_tensors(batch: Any, look_for_bytes: bool = False) -> list[TensorFacts]:
    facts: list[TensorFacts] = []
    for path, tensor in walk_tensors(batch):
        if len(facts) == _MAX_TENSORS:
            break
        facts.append(
            TensorFacts(
                path=path,
                shape=list(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                device=str(tensor.device),
                num_bytes=tensor.numel() * tensor.element_size(),
                was_bytes=look_for_bytes and could_be_bytes(tensor),
            )
        )
    return facts


def could_be_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds images as floats with at most 256 different values in a channel. Such values were
    converted from bytes."""
    if tensor.dim() < 4 or not tensor.is_floating_point() or tensor.device.type != "cpu" or not len(tensor):
        return False
    with torch.no_grad():
        channel = tensor[0][0].flatten()
        return channel.numel() >= 1024 and int(torch.unique(channel).numel()) <= 256


def copy_batch(batch: Any) -> Any:
    """Returns a batch of the same structure that shares no memory with the original. Copies of pinned tensors are
    pinned. The copy is detached from the autograd graph, which the script may already have freed."""
    if isinstance(batch, torch.Tensor):
        if batch.is_pinned():
            return torch.empty_like(batch, pin_memory=True).copy_(batch)
        return batch.detach().clone().requires_grad_(batch.requires_grad)
    if type(batch) is dict:
        return {key: copy_batch(value) for key, value in batch.items()}
    if type(batch) is list:
        return [copy_batch(value) for value in batch]
    if type(batch) is tuple:
        return tuple(copy_batch(value) for value in batch)
    return copy.deepcopy(batch)
