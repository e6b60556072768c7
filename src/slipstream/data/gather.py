"""Whole batches from datasets that are arrays underneath: indexed once for a batch and not once for a sample. Which are
is told by their type, or by a `__getitem__` that does nothing but index; whether the batch is the same is proved by
whoever uses it. Consumes no random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset, get_worker_info

from slipstream.data.indexing import only_indexes
from slipstream.data.lending import lent_storages

Gather = Callable[[torch.Tensor], Any]  # indices to the batch that torch's own collate would make of the samples


def gather_of(dataset: Any) -> Gather | None:
    """None: samples must be taken one by one."""
    if type(dataset) is Subset:
        return _of_subset(dataset)
    if type(dataset) is TensorDataset:
        return _of_tensors(dataset) if all(_is_plain(tensor) for tensor in dataset.tensors) else None
    if type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "format"):
        return _of_arrow(dataset)
    if "__getitems__" not in dir(type(dataset)) and only_indexes(getattr(type(dataset), "__getitem__", None)):
        return lambda indices: _collated(dataset[indices.numpy()])
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether all of it is numbers in memory, and collating samples of it adds nothing to a graph."""
    is_in_memory = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_nested
    return is_in_memory and not tensor.is_quantized and not tensor.requires_grad


def _of_tensors(dataset: TensorDataset) -> Gather:
    return lambda indices: [_select(tensor, indices) for tensor in dataset.tensors]


def _select(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """In a worker straight into shared memory, as torch's own collate does."""
    if get_worker_info() is None:
        return tensor.index_select(0, indices)
    shape = (len(indices), *tensor.shape[1:])
    whole: Any = tensor
    with lent_storages():
        storage = whole._typed_storage()._new_shared(len(indices) * tensor[0].numel(), device=tensor.device)
    out = whole.new(storage).resize_(*shape)
    return torch.index_select(tensor, 0, indices, out=out)


def _of_subset(dataset: Subset[Any]) -> Gather | None:
    inner = gather_of(dataset.dataset)
    if inner is None:
        return None
    try:
        chosen = torch.as_tensor(dataset.indices, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return lambda indices: inner(chosen.index_select(0, indices))


def _of_arrow(dataset: Any) -> Gather | None:
    """A Hugging Face dataset that gives tensors: it reads columns faster than rows."""
    if (dataset.format or {}).get("type") != "torch":
        return None
    return lambda indices: _collated(dataset[indices.tolist()])


def _collated(found: Any) -> Any:
    """Columns in the containers and types that torch's collate gives."""
    if isinstance(found, torch.Tensor):
        return found
    if isinstance(found, np.ndarray):
        return torch.as_tensor(found)
    if isinstance(found, Mapping):
        return {key: _collated(value) for key, value in found.items()}
    if type(found) in (tuple, list):
        return [_collated(value) for value in found]
    raise TypeError(f"a column of type {type(found).__name__}")


def is_same(ours: Any, theirs: Any) -> bool:
    """Bit for bit, with containers, types and the way that tensors lie in memory. May raise for objects that cannot be
    compared."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        return _is_plain(ours) and _is_plain(theirs) and _form(ours) == _form(theirs) and _has_same_bits(ours, theirs)
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(is_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(is_same(a, b) for a, b in zip(ours, theirs, strict=True))
    return bool(ours == theirs)


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _has_same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Also of types that NumPy does not know, such as bfloat16 and float8, and of NaN."""
    bits, wanted = (one.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8) for one in (ours, theirs))
    return torch.equal(bits, wanted)
