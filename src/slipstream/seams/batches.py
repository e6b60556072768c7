"""Reads the number of samples and the tensors of a batch, and copies batches. No function here changes a batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from slipstream.records import TensorFacts
from slipstream.seams.nested import walk_tensors

_Tensor = torch.Tensor  # A global of this module is faster to look up, and count_samples is called at every step.
_MAX_TENSORS = 32


def count_samples(batch: Any) -> int:
    """Returns the number of samples in a batch, or 0 if it is not known.

    The number is the leading dimension of the first tensor that has one, else the length of a list or tuple. Batches of
    graphs report their own number (`num_graphs`), because the leading dimension of their tensors is another number,
    such as the number of nodes."""
    kind = type(batch)
    if (kind is list or kind is tuple or kind is dict) and batch:  # The fast way for the most common batches
        first = next(iter(batch.values())) if kind is dict else batch[0]
        if type(first) is _Tensor and (shape := first.shape):
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
    """Whether a tensor holds images as floats that were probably converted from bytes: the first channel of the first
    image has at most 256 different values."""
    if tensor.dim() < 4 or not tensor.is_floating_point() or tensor.device.type != "cpu" or not len(tensor):
        return False
    with torch.no_grad():
        channel = tensor[0][0].flatten()
        return channel.numel() >= 1024 and int(torch.unique(channel).numel()) <= 256


def copy_batch(batch: Any) -> Any:
    """Returns a batch of the same structure that shares no memory with the original. Copies of pinned tensors are
    pinned. Copied tensors have no autograd graph, because the script may already have freed the original's graph."""
    return tree_map(_copy_leaf, batch, is_leaf=lambda part: type(part) not in (dict, list, tuple))


def _copy_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return copy.deepcopy(leaf)
    if leaf.is_pinned():
        return torch.empty_like(leaf, pin_memory=True).copy_(leaf)
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)
