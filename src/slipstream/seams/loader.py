"""The loader seam: creation of iterators, requests for batches, and building of batches in workers. Wrappers and
subclasses that keep an iterator of their own are covered too, because the `__next__` of torch's iterator returns every
batch."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, Protocol

import msgspec
import torch.utils.data
from torch.utils.data import DataLoader
from torch.utils.data._utils import fetch, worker
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.records import Loader, Site
from slipstream.seams.batches import count_bytes, count_samples, describe_tensors
from slipstream.seams.large_containers import find_container
from slipstream.seams.listener import Listener, Token
from slipstream.seams.modules.fast_path import shorten_next
from slipstream.seams.patching import Patches, Substitute
from slipstream.seams.rng_use import RngUse
from slipstream.seams.user_code import current_site, is_called_directly, site_of_code

_HUGE = 10**9  # Some samplers without an end report a length of at least this number.


class LoaderListener(Protocol):
    """Is notified of loaders and iterators, and may replace batches."""

    def on_new_loader(self) -> None: ...

    def on_iterator(self, iterator: Any) -> None:
        """Is called when an iterator was created, or when the persistent iterator of a loader was reset."""
        ...

    def before_workers(self) -> None:
        """Is called before worker processes are started."""
        ...

    def supply(self, iterator: Any, loader: int) -> Substitute | None:
        """Is called before a batch is requested. If this method returns a Substitute, the script gets its value in
        place of the batch. This method may raise StopIteration."""
        ...


class LoaderSeam:
    def __init__(self, listener: Listener, loader_listener: LoaderListener) -> None:
        self._listener = listener
        self._loader_listener = loader_listener
        self._looks_for_bytes = False
        self._counter = itertools.count()
        self._sites: weakref.WeakKeyDictionary[Any, Site | None] = weakref.WeakKeyDictionary()
        self._dataset_sites: dict[int, Site] = {}
        self._is_direct = True  # Whether the user's own line builds the loader that is being built
        # Idents of loaders and iterators
        self._idents: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._facts: dict[int, Loader] = {}
        self._num_bytes: dict[int, int] = {}  # Bytes of a batch, for each loader whose batch was inspected
        self._drawings: dict[int, RngUse] = {}  # Use of random numbers, for loaders without workers
        self._drawing = -1  # The loader whose batch is checked for the use of random numbers now
        self._shortcut = listener.shortcut
        self.collate_codes: dict[int, CodeType] = {}  # Collate functions by the id of their code, for the stack sampler
        self.current = -1  # The loader that was iterated over last. Forked workers inherit this value.
        self.framework_site: Site | None = None  # The user's line that configures how a framework builds loaders

    def install(self, patches: Patches) -> None:
        self._watch = patches.guard("loader.drawing", self._watch_draws)
        self._learn = patches.guard("loader.drawn", self._learn_draws)
        patches.around(DataLoader, "__init__", "loader.init", self._before_init, self._after_init)
        patches.around(
            DataLoader, "__iter__", "loader.iter", self._before_iter, self._after_iter, self._listener.abandon
        )
        patches.around(
            _BaseDataLoaderIter,
            "__next__",
            "loader.next",
            self._before_next,
            self._after_next,
            self._abandon_next,
            lambda passage: shorten_next(passage, patches, self._listener),
        )

    def _before_init(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Site | None:
        self._is_direct = is_called_directly()
        return current_site()

    def _after_init(self, site: Site | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        loader = args[0]
        first = self._dataset_sites.get(id(loader.dataset))
        if first is None and site is not None:
            self._dataset_sites[id(loader.dataset)] = site
        # If a framework rebuilds the user's loader, the user's arguments are at the site of the first loader.
        is_rebuilt = _is_rebuilt(loader) or not self._is_direct
        self._sites[loader] = first if first is not None and is_rebuilt else site

    def _before_iter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        loader = args[0]
        self.current = self._meet(loader)
        if loader.num_workers:
            self._loader_listener.before_workers()
        return None if self._listener.phase == "input" else self._listener.enter("input")

    def _after_iter(self, token: Token | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        ident = self._idents[args[0]]
        self._idents[result] = ident
        self._shortcut.input = (id(result), ident, self._num_bytes.get(ident, -1))
        self._loader_listener.on_iterator(result)
        self._listener.leave(token, "iterator", ident)

    def _before_next(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        listener = self._listener
        if listener.phase == "input":  # A loader inside a loader. The script iterates over the outer loader.
            return None
        listener.pulse()
        substitute = self._loader_listener.supply(args[0], self._ident_of(args[0]))
        if substitute is not None:
            return substitute
        self._drawing = -1
        self._watch(args[0])
        return listener.enter("input")

    def _after_next(self, token: Token | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if token is None:
            return
        ident = self._ident_of(args[0])
        num_bytes = self._num_bytes.get(ident)
        if num_bytes is None:
            num_bytes = self._learn_batch(ident, result)
            self._shortcut.input = (id(args[0]), ident, num_bytes)
        self._listener.leave(token, "input", ident, count_samples(result), num_bytes)
        if self._drawing == ident >= 0:
            self._learn(ident)

    def _abandon_next(self, token: Token | None) -> None:
        self._listener.abandon(token)  # Usually StopIteration was raised, at the end of an epoch.

    def look_for_bytes(self) -> None:
        """Checks in the next batch of every loader whether its floats were converted from bytes. The answer matters if
        batches are copied to a device."""
        self._looks_for_bytes = True
        self._num_bytes.clear()
        self._shortcut.input = (0, -1, -1)

    def _ident_of(self, iterator: Any) -> int:
        last, ident, _ = self._shortcut.input
        if last != id(iterator):
            ident = self._idents.get(iterator, -1)
            if ident >= 0:
                self._shortcut.input = (id(iterator), ident, self._num_bytes.get(ident, -1))
        return ident

    def _learn_batch(self, ident: int, batch: Any) -> int:
        num_bytes = self._num_bytes[ident] = count_bytes(batch)
        facts = self._facts.get(ident)
        tensors = describe_tensors(batch, self._looks_for_bytes) if facts is not None else []
        if facts is not None and tensors:
            self._facts[ident] = msgspec.structs.replace(facts, tensor_facts=tensors)
            self._listener.meet(self._facts[ident])
        return num_bytes

    def _watch_draws(self, iterator: Any) -> None:
        """Begins to watch the random number generators. The first batch of an epoch is skipped, because the sampler
        draws the order of the samples then."""
        if iterator._num_workers or not iterator._num_yielded:
            return
        ident = self._ident_of(iterator)
        facts, drawing = self._facts.get(ident), self._drawings.get(ident)
        if facts is None or facts.draws is not None:
            return
        if drawing is None:
            drawing = self._drawings[ident] = RngUse(iterator._dataset)
        drawing.begin()
        self._drawing = ident

    def _learn_draws(self, ident: int) -> None:
        drawing = self._drawings[ident]
        drawing.end()
        if drawing.is_over:
            del self._drawings[ident]
            self._facts[ident] = msgspec.structs.replace(self._facts[ident], draws=drawing.has_drawn)
            self._listener.meet(self._facts[ident])

    def _meet(self, loader: Any) -> int:
        ident = self._idents.get(loader)
        if ident is None:
            ident = self._idents[loader] = next(self._counter)
            facts = self._facts[ident] = read_loader(loader, ident, self._site(loader), self.framework_site)
            self._listener.meet(facts)
            if (code := code_of(loader.collate_fn)) is not None:
                self.collate_codes[id(code)] = code
            self._loader_listener.on_new_loader()
        return ident

    def _site(self, loader: Any) -> Site | None:
        """Returns the line that built the loader. If the loader was built before the seam was installed, returns the
        line that first iterates over it."""
        return self._sites[loader] if loader in self._sites else current_site()


def code_of(function: Any) -> CodeType | None:
    """Returns the code of a function or method, of the function that a partial calls, or of an object's `__call__`.
    Collate functions are often objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_rebuilt(loader: Any) -> bool:
    return type(loader).__module__.split(".")[0] in ("accelerate", "lightning", "pytorch_lightning")


def read_loader(loader: Any, ident: int, site: Site | None, framework_site: Site | None) -> Loader:
    dataset, collate = loader.dataset, loader.collate_fn
    is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    context = getattr(loader, "multiprocessing_context", None)
    # The length of an endless sampler is None or _HUGE.
    is_endless = not is_iterable and _length(loader.sampler) is None
    num_batches = None if is_endless else _length(loader)
    num_samples = None if is_iterable else _length(dataset)
    item = getattr(type(dataset), "__iter__" if is_iterable else "__getitem__", None)
    framework = _framework(loader, site)
    return Loader(
        ident=ident,
        site=framework_site if framework == "transformers" and framework_site is not None else site,
        class_name=type(loader).__name__,
        dataset_name=type(dataset).__name__,
        num_workers=loader.num_workers,
        batch_size=_batch_size(loader),
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory=loader.pin_memory,
        is_iterable=is_iterable,
        num_batches=num_batches,
        num_samples=num_samples,
        start_method=start_method_of(context) if loader.num_workers else "",
        collate_name=getattr(collate, "__name__", type(collate).__name__),
        collate_site=site_of_code(code_of(collate)),
        getitem_site=site_of_code(getattr(item, "__code__", None)),
        framework=framework,
        num_threads=threads if type(threads := getattr(loader, "thread_workers", 0)) is int else 0,
        container=find_container(dataset) if loader.num_workers else None,
    )


def _batch_size(loader: Any) -> int | None:
    """Reads the batch size from torch's own batch sampler if the loader has one. Accelerate builds its loader from the
    script's batch sampler, and such a loader does not know the batch size."""
    is_plain = type(loader.batch_sampler) is torch.utils.data.BatchSampler
    size: int | None = loader.batch_sampler.batch_size if is_plain else loader.batch_size
    return size


def _length(sized: Any) -> int | None:
    try:
        length = len(sized)
    except Exception:  # The user's __len__ may raise anything. Then there is no length.
        return None
    return length if length < _HUGE else None


def start_method_of(context: Any) -> str:
    """Returns how a loader with this multiprocessing_context starts workers. This function does not fix the default
    start method, because the script may still set it."""
    if context is not None:
        return context if isinstance(context, str) else str(context.get_start_method())
    import multiprocessing

    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _framework(loader: Any, site: Site | None) -> str:
    package = type(loader).__module__.split(".")[0]
    if package in ("accelerate", "lightning", "pytorch_lightning"):
        return "accelerate" if package == "accelerate" else "lightning"
    if site is not None and "DataLoader" not in site.text:
        import sys

        if "transformers.trainer" in sys.modules and ".train(" in site.text:
            return "transformers"
    return ""


class WorkerSeam:
    """Times the building of batches in a loader's worker. Without workers, events of kind `input` contain the
    building."""

    def __init__(self, worker_listener: WorkerListener) -> None:
        self._worker_listener = worker_listener
        self._listener: FetchListener  # Set in a worker only

    def install(self, patches: Patches) -> None:
        self._patches = patches
        self._drawing: RngUse | None = None  # Set in a worker only
        self._draws_before = patches.guard("loader.fetch.drawing", self._begin_drawing)
        self._draws_after = patches.guard("loader.fetch.drawn", self._end_drawing)
        # functools.wraps keeps the function's name, by which spawned workers find it.
        patches.around(worker, "_worker_loop", "loader.worker", self._before_worker, self._after_worker)

    def _before_worker(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._listener = self._worker_listener.become_worker(args[10] if len(args) > 10 else -1)
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self._patches.around(fetcher, "fetch", "loader.fetch", self._before, self._after)

    def _after_worker(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._worker_listener.retire_worker()

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
        self._draws_before(args[0].dataset)
        return self._listener.begin_fetch()

    def _after(self, token: tuple[int, int], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        index = args[1]
        self._listener.end_fetch(token, len(index) if isinstance(index, (list, tuple)) else 1, self._draws_after)

    def _begin_drawing(self, dataset: Any) -> None:
        if self._drawing is None:
            self._drawing = RngUse(dataset)
        if not self._drawing.is_over:
            self._drawing.begin()

    def _end_drawing(self) -> bool | None:
        return None if self._drawing is None or self._drawing.is_over else self._drawing.end()


class FetchListener(Protocol):
    def begin_fetch(self) -> tuple[int, int]: ...

    def end_fetch(self, token: tuple[int, int], num_samples: int, drew: Callable[[], bool | None]) -> None:
        """Ends the fetch. Calls `drew`, which tells whether random numbers were drawn, after it has read the clock."""
        ...


class WorkerListener(Protocol):
    """Is notified when this process becomes a loader's worker."""

    def become_worker(self, worker: int) -> FetchListener:
        """Returns the listener to the batches that this worker builds."""
        ...

    def retire_worker(self) -> None: ...
