"""Adds worker processes to loaders that have none, and makes workers persist from epoch to epoch. The main process
draws its random numbers at the same moments as in the unchanged script.

Without this module, torch would draw these numbers at other moments. With workers, torch asks the sampler for an
iterator twice and takes indices already in `iter()`. With persistent workers, torch draws no seed for a new epoch."""

from __future__ import annotations

import contextlib
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from slipstream.data.workers.dataset_fingerprint import difference, unread
from slipstream.data.workers.loader_fingerprint import WorkerWatch, fingerprint_for_workers, save_generators
from slipstream.seams.patching import Patches

_MOST_LENT = 4  # maximum number of loaders that have added workers at a time
# lent: the script has no workers, and persistent workers are added. kept: the script's own workers are made persistent.
Kind = Literal["lent", "kept"]
_STATE = "_slipstream_epoch"  # attribute of an iterator


class LoaderEpoch:
    """The state of one iterator's current epoch."""

    def __init__(self, loader: Any, watch: WorkerWatch | None) -> None:
        self.loader = weakref.ref(loader)
        self.is_primed = True  # whether indices were sent to the workers
        self.watch = watch  # since the workers received the dataset; None if the dataset cannot be examined


class LoaderEpochs:
    """Patches torch's loader so that chosen loaders have added or persistent workers. `tell` receives the reason when a
    loader does not get these workers or loses them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._expected: Kind | None = None
        self._kinds: weakref.WeakKeyDictionary[Any, Kind] = weakref.WeakKeyDictionary()
        self._fingerprints: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._holds: weakref.WeakKeyDictionary[Any, IteratorHold] = weakref.WeakKeyDictionary()
        self._look: Callable[..., Any] = lambda dataset: None  # until `install`
        self._watch: Callable[..., Any] = lambda iterator, epoch: None

    def expect(self, kind: Kind | None) -> None:
        """Sets the kind of the loader that is built next."""
        self._expected = kind

    def install(self, patches: Patches) -> None:
        iterator = _MultiProcessingDataLoaderIter
        for name in ("_reset", "_next_data", "_try_put_index", "_shutdown_workers"):
            if not hasattr(iterator, name):
                raise NotImplementedError(f"this torch has no {iterator.__name__}.{name}")
        self._look = patches.guard("persistent_epochs.look", WorkerWatch)
        self._watch = patches.guard("persistent_epochs.watch", self._watch_dataset)
        patches.around(DataLoader, "__init__", "persistent_epochs.init", None, self._after_init)
        patches.around(DataLoader, "__iter__", "persistent_epochs.iter", self._before_iter, _nothing)
        patches.replace(DataLoader, "_get_iterator", self._starting(DataLoader._get_iterator))
        # If the start of an iterator fails, torch ends its workers and reads this attribute. Torch itself sets the
        # attribute only at the end of the start.
        patches.replace(iterator, "_workers_status", _Available())
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
        try:
            now = self._fingerprints[loader] = fingerprint_for_workers(loader, before)
        except Exception as fault:  # the dataset may refer to any object
            self._withdraw(loader)
            self._tell(f"the dataset cannot be checked for changes ({type(fault).__name__}: {fault})")
            return
        if loader._iterator is None:
            return
        changed = difference(before, now) if before is not None else ""
        large = unread(now)
        if changed:
            self._tell(f"the script changed {changed} of the dataset between epochs, so its workers were restarted")
        elif large:
            self._tell(f"{large} of the dataset is too large to check for changes, so workers restart in each epoch")
        if self._is_in_use(loader):  # the old iterator is still being read, so the next epoch gets its own workers
            self._release(loader)
        elif changed or large:
            self._release(loader)._shutdown_workers()

    def _withdraw(self, loader: Any) -> None:
        """Makes the loader read its dataset as the script wrote it."""
        if loader._iterator is not None:
            is_in_use = self._is_in_use(loader)
            iterator = self._release(loader)
            if not is_in_use:
                iterator._shutdown_workers()
        if self._kinds.pop(loader) == "lent":
            _without_workers(loader)
        vars(loader)["persistent_workers"] = False

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
        """Starts an epoch with added workers, or without workers if that fails. It may fail because memory is short, or
        because the loader is read inside another loader's worker."""
        if self._num_lent() >= _MOST_LENT:
            self._tell("a loader continues without workers: four other loaders already have added workers")
            _without_workers(loader)
            return original(loader)
        generators = save_generators(loader)
        try:
            return original(loader)
        except Exception as fault:
            self._tell(
                f"a loader continues without workers: they could not be started ({type(fault).__name__}: {fault})"
            )
            _without_workers(loader)
            generators.restore()
        return original(loader)  # raises an error of the script again

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
        setattr(iterator, _STATE, LoaderEpoch(loader, self._look(loader.dataset)))
        if kind == "kept":  # as torch does: indices are taken at once, from a second iterator over the sampler
            reset()
            return
        with _held_back(iterator, indices):
            reset()
        getattr(iterator, _STATE).is_primed = False

    def _is_in_use(self, loader: Any) -> bool:
        """Whether the loader's iterator has batches left and is held by code other than the loader and this module."""
        epoch: LoaderEpoch | None = vars(loader._iterator).get(_STATE)
        is_over = not loader._iterator._task_info and (epoch is None or epoch.is_primed)
        return not is_over and self._holds[loader].is_shared()

    def _release(self, loader: Any) -> Any:
        """Detaches the loader's iterator and returns it. The iterator stops its workers when it ends, as if they were
        not persistent."""
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

    def _watch_dataset(self, iterator: Any, epoch: LoaderEpoch) -> None:
        """Removes added workers from the next epoch on if the script changes its dataset during this epoch. In a loader
        without workers, a change takes effect at once, but the added workers do not see the change."""
        loader = epoch.loader()
        if epoch.watch is None or loader is None:
            return
        if self._kinds.get(loader) != "lent" or loader._iterator is not iterator:
            return
        changed = epoch.watch.changed(iterator._dataset)
        if changed:
            self._tell(
                f"the script changes {changed} of the dataset while it is read, which workers do not see: "
                "from the next epoch on, this loader has no workers"
            )
            self._release(loader)
            _without_workers(loader)


def _nothing(token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    pass


def _without_workers(loader: Any) -> None:
    loader.num_workers = 0
    loader.prefetch_factor = None
    vars(loader)["persistent_workers"] = False  # torch forbids the assignment after __init__


def _draw_seed(loader: Any) -> int:
    """Draws a seed in the way in which torch does when it starts workers, and returns it."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())


class _Restart:
    """An iterable that returns a given iterator."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> Any:
        return self._iterator


@contextlib.contextmanager
def _held_back(iterator: Any, indices: Any) -> Iterator[None]:
    """Returns a context for a reset. In it, no index is taken from the sampler and no second iterator over the sampler
    is created, as without workers."""
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
    """Returns a context for a reset. In it, persistent workers are seeded for the new epoch as torch seeds workers that
    it starts."""
    queues = iterator._index_queues
    iterator._index_queues = [ReseedingQueue(queue, worker._ResumeIteration, iterator._base_seed) for queue in queues]
    try:
        yield
    finally:
        iterator._index_queues = queues


class _Available:
    """Tells that each worker is available."""

    def __getitem__(self, worker_id: int) -> bool:
        return True

    def __setitem__(self, worker_id: int, is_available: bool) -> None:
        pass


# --- the iterator's life ---------------------------------------------------------------------------------------------


class IteratorHold:
    """Keeps the iterator alive until its loader is destroyed. The iterator then never becomes part of a reference
    cycle.

    Torch ends workers in the iterator's `__del__`. If the loader is part of a reference cycle (a Trainer, a caught
    exception), `__del__` runs too late. The queues no longer exist, and torch waits five seconds for each worker."""

    def __init__(self, loader: Any, iterator: Any) -> None:
        self._box = [iterator]
        self._finalizer = weakref.finalize(loader, self._box.clear)
        self._finalizer.atexit = False

    def is_shared(self) -> bool:
        """Whether anything besides this object and the loader holds the iterator. The reference count is compared with
        that of an example object that is held in the same two ways."""
        example = [object()]
        loader = {"_iterator": example[0]}
        is_shared = sys.getrefcount(self._box[0]) > sys.getrefcount(example[0])
        del loader
        return is_shared

    def release(self) -> None:
        self._finalizer.detach()
        self._box.clear()


# --- the seeds of persistent workers ---------------------------------------------------------------------------------


class ReseedingQueue:
    """Wraps a worker's index queue during a reset and adds the seed to torch's own "resume" message. The worker
    unpickles this message after all messages of the last epoch and before any message of the next."""

    def __init__(self, queue: Any, resume_type: type, base_seed: int) -> None:
        self._queue = queue
        self._resume_type = resume_type
        self._base_seed = base_seed

    def put(self, message: Any) -> None:
        if isinstance(message, self._resume_type):
            message = _Reseed(message, self._base_seed)
        self._queue.put(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Reseed:
    def __init__(self, message: Any, base_seed: int) -> None:
        self._message = message
        self._base_seed = base_seed

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return reseed, (self._message, self._base_seed)


def reseed(message: Any, base_seed: int) -> Any:
    """Seeds the generators as torch does when a worker starts, and returns torch's own message. The worker calls this
    function when it unpickles the message."""
    info = get_worker_info()
    if info is not None:  # not in the main process, which unpickles the message too when the worker sends it back
        with contextlib.suppress(Exception):  # with an unknown torch version the worker keeps its current generators
            _seed_worker(info, base_seed)
    return message


def _seed_worker(info: Any, base_seed: int) -> None:
    seed = base_seed + info.id
    random.seed(seed)
    torch.manual_seed(seed)
    if vars(worker)["HAS_NUMPY"]:
        import numpy as np

        generate: Any = worker._generate_state
        np.random.seed(generate(base_seed, info.id))
    object.__setattr__(info, "seed", seed)  # the object is frozen, so an assignment fails
