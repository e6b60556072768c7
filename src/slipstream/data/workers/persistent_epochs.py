"""Worker processes where the script had none, and workers that stay from epoch to epoch, with the random numbers of
the main process drawn when the bare script draws them. Torch alone draws them at other moments: with workers it asks
the sampler at `iter()` and twice, and workers that stay draw no seed for a new epoch."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from slipstream.data.workers.dataset_fingerprint import difference, look, unread
from slipstream.data.workers.iterator_lifetime import IteratorHold
from slipstream.data.workers.loader_fingerprint import fingerprint_of, generator_states, restore
from slipstream.data.workers.reseeding import ReseedingQueue
from slipstream.seams.patching import Patches

_MOST_LENT = 4  # loaders whose workers stay at a time
# lent: the script has no workers; they are ours, and they stay. kept: the script's own workers, made to stay.
Kind = Literal["lent", "kept"]
_STATE = "_slipstream_epoch"  # on an iterator


class LoaderEpoch:
    """What we know of one iterator."""

    def __init__(self, loader: Any, fingerprint: dict[str, Any]) -> None:
        self.loader = weakref.ref(loader)
        self.is_primed = True
        self.fingerprint = fingerprint  # the dataset's own attributes, as its workers know them


class LoaderEpochs:
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell  # why it is not done, or no longer
        self._expected: Kind | None = None
        self._kinds: weakref.WeakKeyDictionary[Any, Kind] = weakref.WeakKeyDictionary()
        self._fingerprints: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._holds: weakref.WeakKeyDictionary[Any, IteratorHold] = weakref.WeakKeyDictionary()

    def expect(self, kind: Kind | None) -> None:
        """What the loader that is being built now is to be."""
        self._expected = kind

    def install(self, patches: Patches) -> None:
        iterator = _MultiProcessingDataLoaderIter
        for name in ("_reset", "_next_data", "_try_put_index", "_shutdown_workers"):
            if not hasattr(iterator, name):
                raise NotImplementedError(f"this torch has no {iterator.__name__}.{name}")
        patches.around(DataLoader, "__init__", "epochs.init", None, self._after_init)
        patches.around(DataLoader, "__iter__", "epochs.iter", self._before_iter, _nothing)
        patches.replace(DataLoader, "_get_iterator", self._starting(DataLoader._get_iterator))
        patches.replace(iterator, "_reset", self._resetting(iterator._reset))
        patches.replace(iterator, "_next_data", self._asking(iterator._next_data))

    # --- a loader is built, an epoch begins --------------------------------------------------------------------------

    def _after_init(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._expected is not None:
            self._kinds[args[0]] = self._expected
            self._expected = None

    def _before_iter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[0]
        if loader not in self._kinds or not loader.num_workers:
            return
        before = self._fingerprints.get(loader)
        now = self._fingerprints[loader] = fingerprint_of(loader, before)
        if loader._iterator is None:
            return
        changed = difference(before, now) if before is not None else ""
        large = unread(now)
        if changed:
            self._tell(f"the script changed {changed} of the dataset between epochs: its workers were started anew")
        elif large:
            self._tell(f"{large} of the dataset is too large to see whether it changes: workers do not stay")
        if self._is_in_use(loader):  # somebody is still reading: the next epoch gets workers of its own
            self._dismiss(loader)
        elif changed or large:
            self._dismiss(loader)._shutdown_workers()

    def _starting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _get_iterator(loader: Any) -> Any:
            kind = self._kinds.get(loader)
            if kind is None or not loader.num_workers:
                return original(loader)
            iterator = original(loader) if kind == "kept" else self._start(loader, original)
            if loader.num_workers:
                self._holds[loader] = IteratorHold(loader, iterator)
            return iterator

        return _get_iterator

    def _start(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """Memory may be short; and a loader that is read inside another's worker may have none of its own."""
        if self._num_lent() >= _MOST_LENT:
            self._tell("a loader goes on without workers: they are lent to four loaders already")
            _without_workers(loader)
            return original(loader)
        states = generator_states(loader)
        try:
            return original(loader)
        except Exception as fault:
            self._tell(f"the workers could not be started ({type(fault).__name__}: {fault}): it goes on without")
            _without_workers(loader)
            restore(states)
        return original(loader)  # raises again what was the script's own

    def _num_lent(self) -> int:
        lent = [loader for loader, kind in self._kinds.items() if kind == "lent" and loader.num_workers]
        return sum(loader._iterator is not None for loader in lent)

    def _resetting(self, original: Callable[..., None]) -> Callable[..., None]:
        def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            kind = self._kinds.get(loader)
            if kind is None:
                original(iterator, loader, first_iter)
            elif first_iter:
                self._begin(iterator, loader, kind, iterator._sampler_iter, lambda: original(iterator, loader, True))
            else:
                indices = iter(iterator._index_sampler)
                iterator._base_seed = _draw_seed(loader)
                with _reseeded(iterator):
                    self._begin(iterator, loader, kind, indices, lambda: original(iterator, loader))

        return _reset

    def _begin(self, iterator: Any, loader: Any, kind: Kind, indices: Any, reset: Callable[[], None]) -> None:
        setattr(iterator, _STATE, LoaderEpoch(loader, look(loader.dataset, 1)))
        if kind == "kept":  # torch's own order: asked at once, of a second iterator over the sampler
            reset()
            return
        with _held_back(iterator, indices):
            reset()
        getattr(iterator, _STATE).is_primed = False

    def _is_in_use(self, loader: Any) -> bool:
        """Batches are still to come out of the loader's iterator, and somebody besides the loader holds it."""
        epoch: LoaderEpoch | None = vars(loader._iterator).get(_STATE)
        is_over = not loader._iterator._task_info and (epoch is None or epoch.is_primed)
        return not is_over and self._holds[loader].is_shared()

    def _dismiss(self, loader: Any) -> Any:
        """Its iterator comes to its end as one of a loader whose workers do not stay."""
        self._holds.pop(loader).release()
        iterator, loader._iterator = loader._iterator, None
        iterator._persistent_workers = False
        return iterator

    # --- a batch is asked for ----------------------------------------------------------------------------------------

    def _asking(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _next_data(iterator: Any) -> Any:
            epoch: LoaderEpoch | None = vars(iterator).get(_STATE)
            if epoch is not None:
                if not epoch.is_primed:
                    epoch.is_primed = True
                    for _ in range(iterator._prefetch_factor * iterator._num_workers):
                        iterator._try_put_index()
                self._watch(iterator, epoch)
            return original(iterator)

        return _next_data

    def _watch(self, iterator: Any, epoch: LoaderEpoch) -> None:
        """A script without workers may change its dataset while it is read; workers of ours do not see that."""
        loader = epoch.loader()
        if loader is None or self._kinds.get(loader) != "lent" or loader._iterator is not iterator:
            return
        changed = difference(epoch.fingerprint, look(iterator._dataset, 1))
        if changed:
            self._tell(
                f"the script changes {changed} of the dataset while it is read, which workers do not see: "
                "from the next epoch on there are none"
            )
            self._dismiss(loader)
            _without_workers(loader)


def _nothing(token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    pass


def _without_workers(loader: Any) -> None:
    loader.num_workers = 0
    loader.prefetch_factor = None
    vars(loader)["persistent_workers"] = False  # by the back door: torch forbids it after __init__


def _draw_seed(loader: Any) -> int:
    """As torch draws one for workers that are started anew."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())


class _Restart:
    """Gives out an iterator that was made before."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> Any:
        return self._iterator


@contextlib.contextmanager
def _held_back(iterator: Any, indices: Any) -> Iterator[None]:
    """The sampler is asked for no index yet, and no second time for an iterator: as without workers."""
    sampler = iterator._index_sampler
    iterator._index_sampler = _Restart(indices)
    iterator._try_put_index = lambda: None
    try:
        yield
    finally:
        iterator._index_sampler = sampler
        del iterator._try_put_index


@contextlib.contextmanager
def _reseeded(iterator: Any) -> Iterator[None]:
    """Workers that stay are seeded for the new epoch as workers that are started anew."""
    queues = iterator._index_queues
    iterator._index_queues = [ReseedingQueue(queue, worker._ResumeIteration, iterator._base_seed) for queue in queues]
    try:
        yield
    finally:
        iterator._index_queues = queues
