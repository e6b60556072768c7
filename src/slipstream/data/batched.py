"""Puts whole-batch indexing into torch's loaders: the fetcher asks for a batch at once, and where nobody else looks at
the indices they are never made into Python numbers. The first batches are built both ways and compared; one that
differs, or a fault of ours, and the loader goes on as torch has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from slipstream.data.gather import Gather, gather_of, is_same
from slipstream.seams.patch import Patches

_PROVED = 2  # batches that are built both ways, in each process
_STATE = "_slipstream_gather"  # on a fetcher


class _Proving:
    """How far the gather of one fetcher is trusted."""

    def __init__(self, gather: Gather | None) -> None:
        self.gather = gather
        self.num_left = _PROVED


def can_gather(dataset: Any, collate_fn: Any) -> bool:
    """Whether a few samples come out the same, taken at once and one by one."""
    gather = gather_of(dataset) if collate_fn in (None, default_collate) else None
    if gather is None or not len(dataset):
        return False
    last = len(dataset) - 1
    indices = sorted({0, last // 3, last // 2, last})
    try:
        return is_same(gather(torch.tensor(indices)), default_collate([dataset[index] for index in indices]))
    except Exception:  # a list, for one, cannot be indexed with many indices at once
        return False


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
                ours = state.gather(torch.as_tensor(indices))
            except Exception as fault:  # a batch that torch may still be able to build
                return self._give_up(state, f"{type(fault).__name__}: {fault}", original(fetcher, _numbers(indices)))
            if not state.num_left:
                return ours
            state.num_left -= 1
            theirs = original(fetcher, _numbers(indices))
            difference = _difference(ours, theirs)
            return self._give_up(state, difference, theirs) if difference else theirs

        return fetch

    def _give_up(self, state: _Proving, why: str, batch: Any) -> Any:
        state.gather = None
        self._tell(why)
        return batch


def _difference(ours: Any, theirs: Any) -> str:
    """Why the batch built whole cannot be trusted; "" if it is the same."""
    try:
        return "" if is_same(ours, theirs) else "a batch came out otherwise"
    except Exception as fault:  # the dataset may hold any object
        return f"its batches cannot be compared ({type(fault).__name__}: {fault})"


def _state_of(fetcher: Any) -> _Proving:
    state: _Proving | None = fetcher.__dict__.get(_STATE)
    if state is None:
        is_torchs_own = fetcher.auto_collation and fetcher.collate_fn is default_collate
        state = _Proving(gather_of(fetcher.dataset) if is_torchs_own else None)
        setattr(fetcher, _STATE, state)
    return state


def _numbers(indices: Any) -> Any:
    return indices.tolist() if isinstance(indices, torch.Tensor) else indices


# --- indices that stay tensors --------------------------------------------------------------------------------------


def use_gather(iterator: Any, tell: Callable[[str], None]) -> None:
    """One iterator of this process, without any patch: its batches are indexed whole, and its first ones compared."""
    fetcher = iterator._dataset_fetcher
    fetch = BatchedFetch(tell)._fetching(type(fetcher).fetch)
    fetcher.fetch = lambda indices: fetch(fetcher, indices)
    _use_chunks(iterator)


def _use_chunks(iterator: Any) -> None:
    """Only in this process, where the fetcher alone sees them."""
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
    """The same indices in the same order, from the same random numbers drawn at the same moments."""
    sampler, size = batches.sampler, batches.batch_size
    num_samples = len(sampler.data_source)
    generator = None
    if type(sampler) is SequentialSampler:
        order = torch.arange(num_samples)
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
    if generator is not None:  # torch's own sampler draws once more when it ends
        torch.randperm(num_samples, generator=generator)
