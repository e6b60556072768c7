"""Caches whole samples from epoch to epoch, for datasets that always return the same sample for the same index.

Each process first requests four samples twice. In each epoch it also compares some cached samples with the dataset. The
whole cache is dropped if the samples draw random numbers, if a sample differs, or if memory is too small. It is also
dropped if the dataset or a global variable of its functions changes. The script then reads its dataset directly again.
A dataset whose functions print, write or set variables outside of themselves is not cached, because these functions are
not called for cached samples."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.data.images import prefill
from slipstream.data.samples.cache_reader import SampleCacheState, SampleReader
from slipstream.data.samples.pure_index import only_indexes
from slipstream.data.workers.outside_state import OutsideState
from slipstream.data.workers.worker_blockers import start_method
from slipstream.seams.patching import Patches

_STATE = "_slipstream_reading"  # attribute of a fetcher


def obstacle(loader: Any) -> str:
    """Returns the reason why this loader's samples cannot be cached, or "" if they can."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return "an iterable dataset yields its samples one at a time"
    if not loader._auto_collation:
        return "the loader does not group samples into batches"
    inner = dataset
    while type(inner) is Subset:
        inner = inner.dataset
    getitem = getattr(type(inner), "__getitem__", None)
    if isinstance(inner, (list, tuple, TensorDataset)) or only_indexes(getitem):
        return f"the samples of {type(inner).__name__} are already in memory"
    if getattr(inner, "__getitems__", None):
        return f"{type(inner).__name__} returns whole batches of samples (__getitems__)"
    if loader.num_workers and start_method({"multiprocessing_context": loader.multiprocessing_context}) != "fork":
        return "workers are spawned here, and spawned workers cannot share a cache"
    if getattr(getitem, "__code__", None) is None:
        return f"{type(inner).__name__}.__getitem__ is not written in Python, so it cannot be examined"
    if reason := OutsideState(dataset).obstacle():
        return reason
    try:
        weakref.ref(dataset)
        return "" if len(dataset) else "the dataset is empty"
    except Exception:  # a class with __slots__, or a __len__ of the user's that may raise anything
        return f"{type(dataset).__name__} has no length or does not support weak references"


class SampleCache:
    """Patches torch's loaders so that samples of admitted datasets are cached. `tell_kept` receives the note of a
    dataset when its first sample is cached. `tell_not` receives the reason when a dataset is not or no longer
    cached."""

    def __init__(self, tell_kept: Callable[[Any], None], tell_not: Callable[[str], None]) -> None:
        self._tell_kept = tell_kept
        self._tell_not = tell_not
        self._states: dict[int, SampleCacheState] = {}  # by the id of the dataset
        self._admitted: dict[int, Any] = {}

    def admit(self, dataset: Any, note: Any) -> None:
        """Allows samples of this dataset to be cached. `note` is passed to `tell_kept` when they are."""
        self._admitted[id(dataset)] = note

    def install(self, patches: Patches) -> None:
        patches.around(DataLoader, "__iter__", "samples.iter", self._before_iter, _nothing)
        patches.around(_BaseDataLoaderIter, "__next__", "samples.next", None, self._after_next)
        patches.replace(_MapDatasetFetcher, "fetch", self._fetching(_MapDatasetFetcher.fetch))
        patches.on_close(self._states.clear)

    # --- in the script's process -------------------------------------------------------------------------------------

    def fill(self, loader: Any, limit_s: float) -> tuple[int, float]:
        """Caches the samples of the epoch that is about to begin, in forked processes. Returns the number of cached
        samples, and the share of the epoch's samples that was read before the time limit."""
        state = self._states.get(id(loader.dataset))
        if state is None or state.arena.reason:
            return 0, 0.0
        arena = state.arena

        def maker() -> Callable[[int], Any]:
            reader, early = SampleReader(loader.dataset, state), list[int]()

            def make(index: int) -> None:
                is_early = not reader.is_proved
                if not reader.begin_batch():
                    return
                reader.sample(index)
                if is_early:
                    early.append(index)
                    for one in early if reader.is_proved else []:  # the samples of the proof were not cached
                        reader.sample(one)
                reader.end_batch()

            return make

        share = prefill.fill(loader, maker, lambda num_made: bool(arena.reason), limit_s)
        self._report(state)
        return 0 if arena.reason else len(arena), share

    def _before_iter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Creates the cache before workers are forked, so that they share it."""
        loader = args[0]
        if get_worker_info() is not None or id(loader.dataset) not in self._admitted:
            return
        state = self._states.get(id(loader.dataset))
        if state is None or state.dataset() is not loader.dataset:
            reason = obstacle(loader)
            if reason:
                self._tell_not(reason)
                del self._admitted[id(loader.dataset)]
                return
            state = self._states[id(loader.dataset)] = SampleCacheState(loader.dataset)
            weakref.finalize(loader.dataset, self._states.pop, id(loader.dataset), None).atexit = False
        state.begin_epoch(has_workers=loader.num_workers > 0)
        self._report(state)

    def _after_next(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        state = self._states.get(id(args[0]._dataset))
        if state is not None:
            self._report(state)

    def _report(self, state: SampleCacheState) -> None:
        """Reports once that the cache was dropped, and once that it is used. The state is in the shared arena, so
        this covers what the workers did."""
        if state.is_told:
            return
        if state.arena.reason:
            state.is_told = True
            self._tell_not(state.arena.reason)
            state.arena.release()
        elif len(state.arena) and not state.is_kept:
            state.is_kept = True
            self._tell_kept(self._admitted.get(id(state.dataset())))

    # --- in the process that reads the dataset -----------------------------------------------------------------------

    def _fetching(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def fetch(fetcher: Any, indices: Any) -> Any:
            reader = self._reader_of(fetcher)
            if reader is None or not reader.begin_batch():
                return original(fetcher, indices)
            samples = [reader.sample(index) for index in indices]
            reader.end_batch()
            return fetcher.collate_fn(samples)

        return fetch

    def _reader_of(self, fetcher: Any) -> SampleReader | None:
        if _STATE not in vars(fetcher):
            setattr(fetcher, _STATE, self._new_reader(fetcher))
        reader: SampleReader | None = vars(fetcher)[_STATE]
        return reader

    def _new_reader(self, fetcher: Any) -> SampleReader | None:
        state = self._states.get(id(fetcher.dataset)) if fetcher.auto_collation else None
        if state is None or state.dataset() is not fetcher.dataset:
            return None
        try:
            return SampleReader(fetcher.dataset, state)
        except Exception as fault:  # the dataset may refer to any object
            state.arena.drop(f"{type(fault).__name__}: {fault}")
            return None


def _nothing(token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    pass
