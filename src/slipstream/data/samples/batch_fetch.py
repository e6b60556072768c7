"""Whole-batch indexing for datasets that consist of arrays, and for Hugging Face datasets that return tensors. The
dataset is indexed once per batch and not once per sample.

`BatchedFetch` installs whole-batch indexing in torch's loaders. If a loader has no workers and a sampler of torch's
own, the sampler yields tensors of indices. The first batches are built in both ways and compared. If a batch differs,
or if our code raises, the loader continues in torch's own way.

`gather_of` recognises suitable datasets by their type, or by a `__getitem__` that only indexes. It does not compare
batches. Its callers compare the first batches with torch's. If indexing draws random numbers, the states of the
generators are restored, and whole-batch indexing is not used for the dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from slipstream.data.samples.hugging_face import is_hugging_face
from slipstream.data.samples.pure_index import only_indexes
from slipstream.data.transport.buffer_pool import lent_storages
from slipstream.data.workers.dataset_generators import generators_of
from slipstream.seams.patching import Patches
from slipstream.seams.rng_state import RngState

_PROVED = 2  # number of batches that each process builds in both ways in each epoch
_STATE = "_slipstream_gather"  # attribute of a fetcher


class _Proving:
    """The gather function of one fetcher, or None if there is none, and how many batches are still to be compared."""

    def __init__(self, gather: Gather | None) -> None:
        self.gather = gather
        self.num_left = _PROVED


def can_gather(dataset: Any, collate_fn: Any) -> bool:
    """Whether a few samples are the same when they are indexed at once and when they are indexed one at a time."""
    try:
        gather = gather_of(dataset) if collate_fn is None or collate_fn is default_collate else None
        if gather is None or not len(dataset):
            return False
        last = len(dataset) - 1
        indices = sorted({0, last // 3, last // 2, last})
        before = RngState(generators_of(dataset))
        try:
            ours, theirs = (
                gather(torch.tensor(indices, device="cpu")),
                default_collate([dataset[index] for index in indices]),
            )
        finally:
            has_drawn = _rewind(before)
        return not has_drawn and is_same(ours, theirs)
    except Exception:  # a list, for example, cannot be indexed with several indices at once
        return False


def _rewind(before: RngState) -> bool:
    """Restores the generators. Returns whether a random number was drawn since `before`."""
    has_drawn = before.has_moved()
    if has_drawn:
        before.restore()
    return has_drawn


class BatchedFetch:
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def install(self, patches: Patches) -> None:
        patches.replace(_MapDatasetFetcher, "fetch", self._fetching(_MapDatasetFetcher.fetch))
        patches.around(
            _SingleProcessDataLoaderIter,
            "__init__",
            "batched.iterator",
            None,
            lambda token, args, kwargs, result: _use_chunks(args[0]),
        )

    def _fetching(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def fetch(fetcher: Any, indices: Any) -> Any:
            state = _state_of(fetcher)
            if state.gather is None:
                return original(fetcher, _numbers(indices))
            try:
                before = RngState(generators_of(fetcher.dataset)) if state.num_left else None
            except Exception as fault:
                return self._give_up(state, f"{type(fault).__name__}: {fault}", original(fetcher, _numbers(indices)))
            try:
                ours = state.gather(torch.as_tensor(indices, device="cpu"))
            except Exception as fault:  # torch may still be able to build the batch
                if before is not None:
                    _rewind(before)
                return self._give_up(state, f"{type(fault).__name__}: {fault}", original(fetcher, _numbers(indices)))
            if before is None:
                return ours
            has_drawn = _rewind(before)
            state.num_left -= 1
            theirs = original(fetcher, _numbers(indices))
            difference = "random numbers are drawn for the samples" if has_drawn else _difference(ours, theirs)
            return self._give_up(state, difference, theirs) if difference else theirs

        return fetch

    def _give_up(self, state: _Proving, why: str, batch: Any) -> Any:
        state.gather = None
        self._tell(why)
        return batch


def _difference(ours: Any, theirs: Any) -> str:
    """Returns why the batch that was indexed at once cannot be used, or "" if it is the same as torch's."""
    try:
        return "" if is_same(ours, theirs) else "a batch that was indexed at once differs from torch's"
    except Exception as fault:  # the dataset may hold any object
        return f"its batches cannot be compared ({type(fault).__name__}: {fault})"


def _state_of(fetcher: Any) -> _Proving:
    state: _Proving | None = fetcher.__dict__.get(_STATE)
    if state is None:
        is_torchs_own = fetcher.auto_collation and fetcher.collate_fn is default_collate
        try:
            gather = gather_of(fetcher.dataset) if is_torchs_own else None
        except Exception:  # an attribute of the dataset may be computed and raise anything
            gather = None
        state = _Proving(gather)
        setattr(fetcher, _STATE, state)
    return state


def _numbers(indices: Any) -> Any:
    return indices.tolist() if isinstance(indices, torch.Tensor) else indices


# --- indices that stay tensors ---------------------------------------------------------------------------------------


def use_gather(iterator: Any, tell: Callable[[str], None]) -> None:
    """Installs whole-batch indexing in one iterator of this process, without a patch. Its first batches are
    compared."""
    fetcher = iterator._dataset_fetcher
    fetch = BatchedFetch(tell)._fetching(type(fetcher).fetch)
    fetcher.fetch = lambda indices: fetch(fetcher, indices)
    _use_chunks(iterator)


def _use_chunks(iterator: Any) -> None:
    """Makes the sampler yield tensors of indices. Only iterators that build batches in this process may use this,
    because nothing but the fetcher uses their indices."""
    fetcher, sampler = iterator._dataset_fetcher, iterator._index_sampler
    if type(fetcher) is _MapDatasetFetcher and _is_torchs_own(sampler) and _state_of(fetcher).gather is not None:
        iterator._sampler_iter = _chunks(sampler)


def _is_torchs_own(batches: Any) -> bool:
    if type(batches) is not BatchSampler:
        return False
    sampler: Any = batches.sampler
    if type(sampler) is SequentialSampler:
        return True
    is_whole = type(sampler) is RandomSampler and not sampler.replacement
    return is_whole and bool(sampler.num_samples == len(sampler.data_source))


def _chunks(batches: Any) -> Iterator[torch.Tensor]:
    """Yields the indices of torch's own sampler, in the same order. The same random numbers are drawn at the same
    moments."""
    sampler, size = batches.sampler, batches.batch_size
    num_samples = len(sampler.data_source)
    generator = None
    if type(sampler) is SequentialSampler:
        order = torch.arange(num_samples, device="cpu")
    else:
        generator = sampler.generator
        own = generator
        if own is None:
            own = torch.Generator()
            own.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        order = torch.randperm(num_samples, generator=own)
    end = num_samples - num_samples % size if batches.drop_last else num_samples
    for at in range(0, end, size):
        yield order[at : at + size]
    if generator is not None:  # torch's own sampler draws once more at its end
        torch.randperm(num_samples, generator=generator)


Gather = Callable[[torch.Tensor], Any]  # from indices to the batch that torch's own collate makes of the samples


def gather_of(dataset: Any) -> Gather | None:
    """Returns the function that indexes a whole batch, or None if samples must be taken one at a time."""
    if type(dataset) is Subset:
        return _of_subset(dataset)
    if type(dataset) is TensorDataset:
        return _of_tensors(dataset) if all(_is_plain(tensor) for tensor in dataset.tensors) else None
    if is_hugging_face(dataset):
        return _of_arrow(dataset)
    if "__getitems__" not in dir(type(dataset)) and only_indexes(getattr(type(dataset), "__getitem__", None)):
        return lambda indices: _collated(dataset[indices.numpy()])
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor holds plain numbers in memory and collating its samples adds nothing to an autograd graph."""
    is_in_memory = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_nested
    return is_in_memory and not tensor.is_quantized and not tensor.requires_grad


def _of_tensors(dataset: TensorDataset) -> Gather:
    return lambda indices: [_select(tensor, indices) for tensor in dataset.tensors]


def _select(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Indexes a tensor. In a worker the result is written directly into shared memory, as in torch's own collate."""
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
        chosen = torch.as_tensor(dataset.indices, dtype=torch.int64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return None
    return lambda indices: inner(chosen.index_select(0, indices))


def _of_arrow(dataset: Any) -> Gather | None:
    """Returns the function for a Hugging Face dataset that returns tensors, or None. Such a dataset reads columns
    faster than rows."""
    if (dataset.format or {}).get("type") != "torch":
        return None
    return lambda indices: _collated(dataset[indices.tolist()])


def _collated(found: Any) -> Any:
    """Converts columns to the containers and types that torch's collate returns."""
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
    """Whether two batches are equal bit for bit, including containers, types and strides. May raise for objects that
    cannot be compared."""
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
    """Whether two tensors have the same bits. This also works for NaN and for types that NumPy does not have, such as
    bfloat16 and float8."""
    bits, wanted = (one.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8) for one in (ours, theirs))
    return torch.equal(bits, wanted)
