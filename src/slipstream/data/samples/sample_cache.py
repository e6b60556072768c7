"""Whole samples kept from epoch to epoch, for datasets that give the same sample for the same index whoever asks and
whenever. Found out by asking twice, watched ever after: a random number drawn, an attribute changed, one sample that
comes out otherwise, and everything kept is dropped; what the script gets then is its own."""

from __future__ import annotations

import dis
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.data.images import prefill
from slipstream.data.samples.cache_reader import SampleCacheState, SampleReader
from slipstream.data.samples.pure_index import only_indexes
from slipstream.data.workers.worker_blockers import start_method
from slipstream.seams.patching import Patches

_STATE = "_slipstream_reading"  # on a fetcher


def obstacle(loader: Any) -> str:
    """What stands against keeping this loader's samples; "" if nothing does."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return "an iterable dataset gives its samples one by one"
    if not loader._auto_collation:
        return "the loader does not make batches of samples itself"
    inner = dataset
    while type(inner) is Subset:
        inner = inner.dataset
    getitem = getattr(type(inner), "__getitem__", None)
    if isinstance(inner, (list, tuple, TensorDataset)) or only_indexes(getitem):
        return f"the samples of {type(inner).__name__} are in memory already"
    if getattr(inner, "__getitems__", None):
        return f"{type(inner).__name__} gives whole batches of samples itself"
    if loader.num_workers and start_method({"multiprocessing_context": loader.multiprocessing_context}) != "fork":
        return "workers are spawned here, and each would have to keep samples of its own"
    if _sets_globals(getitem):
        return f"{type(inner).__name__}.__getitem__ sets a variable of its module"
    try:
        weakref.ref(dataset)
        return "" if len(dataset) else "it is empty"
    except Exception:  # slots, or a __len__ of the user's that may raise anything
        return f"{type(dataset).__name__} has no length, or cannot be followed"


def _sets_globals(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is None or any(step.opname in ("STORE_GLOBAL", "STORE_DEREF") for step in dis.get_instructions(code))


class SampleCache:
    def __init__(self, tell_kept: Callable[[Any], None], tell_not: Callable[[str], None]) -> None:
        self._tell_kept = tell_kept
        self._tell_not = tell_not
        self._keepings: dict[int, SampleCacheState] = {}  # by identity of the dataset
        self._admitted: dict[int, Any] = {}

    def admit(self, dataset: Any, note: Any) -> None:
        """Samples of this dataset may be kept. `note` is what is told when they are."""
        self._admitted[id(dataset)] = note

    def install(self, patches: Patches) -> None:
        patches.around(DataLoader, "__iter__", "samples.iter", self._before_iter, _nothing)
        patches.around(_BaseDataLoaderIter, "__next__", "samples.next", None, self._after_next)
        patches.replace(_MapDatasetFetcher, "fetch", self._fetching(_MapDatasetFetcher.fetch))
        patches.on_close(self._keepings.clear)

    # --- in the script's process -----------------------------------------------------------------------------------

    def fill(self, loader: Any, limit_s: float) -> tuple[int, float]:
        """Samples of the epoch that begins, kept before it by other processes: how many there are now, and the share
        that was asked for."""
        keeping = self._keepings.get(id(loader.dataset))
        if keeping is None or keeping.arena.reason:
            return 0, 0.0
        arena = keeping.arena

        def maker() -> Callable[[int], Any]:
            reading, early = SampleReader(loader.dataset, keeping), list[int]()

            def make(index: int) -> None:
                is_early = not reading.is_proved
                if not reading.begin_batch():
                    return
                reading.sample(index)
                if is_early:
                    early.append(index)
                    for one in early if reading.is_proved else []:  # until now none was kept
                        reading.sample(one)
                reading.end_batch()

            return make

        share = prefill.fill(loader, maker, lambda num_made: bool(arena.reason), limit_s)
        self._report(keeping)
        return 0 if arena.reason else len(arena), share

    def _before_iter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before workers are forked: they share what is made here."""
        loader = args[0]
        if get_worker_info() is not None or id(loader.dataset) not in self._admitted:
            return
        keeping = self._keepings.get(id(loader.dataset))
        if keeping is None or keeping.dataset() is not loader.dataset:
            reason = obstacle(loader)
            if reason:
                self._tell_not(reason)
                del self._admitted[id(loader.dataset)]
                return
            keeping = self._keepings[id(loader.dataset)] = SampleCacheState(loader.dataset)
            weakref.finalize(loader.dataset, self._keepings.pop, id(loader.dataset), None).atexit = False
        keeping.begin_epoch(has_workers=loader.num_workers > 0)
        self._report(keeping)

    def _after_next(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        keeping = self._keepings.get(id(args[0]._dataset))
        if keeping is not None:
            self._report(keeping)

    def _report(self, keeping: SampleCacheState) -> None:
        """What workers found out is read from the shelf."""
        if keeping.is_told:
            return
        if keeping.arena.reason:
            keeping.is_told = True
            self._tell_not(keeping.arena.reason)
            keeping.arena.let_go()
        elif len(keeping.arena) and not keeping.is_kept:
            keeping.is_kept = True
            self._tell_kept(self._admitted.get(id(keeping.dataset())))

    # --- in the process that reads the dataset ---------------------------------------------------------------------

    def _fetching(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def fetch(fetcher: Any, indices: Any) -> Any:
            reading = self._reading_of(fetcher)
            if reading is None or not reading.begin_batch():
                return original(fetcher, indices)
            samples = [reading.sample(index) for index in indices]
            reading.end_batch()
            return fetcher.collate_fn(samples)

        return fetch

    def _reading_of(self, fetcher: Any) -> SampleReader | None:
        if _STATE not in vars(fetcher):
            keeping = self._keepings.get(id(fetcher.dataset)) if fetcher.auto_collation else None
            is_ours = keeping is not None and keeping.dataset() is fetcher.dataset
            setattr(
                fetcher, _STATE, SampleReader(fetcher.dataset, keeping) if keeping is not None and is_ours else None
            )
        reading: SampleReader | None = vars(fetcher)[_STATE]
        return reading


def _nothing(token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    pass
