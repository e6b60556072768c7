"""Installs threads for the script's own loaders. This module records which loaders have threads and what is kept from
epoch to epoch. It falls back to the loader's own iterator when threads do not work. The loader itself is not
changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from slipstream.data.threads.dataset_copies import UncopyableError, duplicate
from slipstream.data.threads.iterator import ThreadedIter, fetcher_of
from slipstream.data.threads.rng_streams import redirect_draws
from slipstream.data.threads.thread_pool import BatchThreads, WorkerSlot, dismiss_all
from slipstream.data.workers.dataset_fingerprint import difference, unread
from slipstream.data.workers.loader_fingerprint import fingerprint_of, save_generators
from slipstream.seams.data_threads import is_beside
from slipstream.seams.patching import Patches


class _Kept:
    """The worker slots of one loader's last epoch, and the threads that used them."""

    def __init__(self, slots: list[WorkerSlot], fingerprint: dict[str, Any], batch_threads: BatchThreads) -> None:
        self.slots, self.fingerprint, self.batch_threads = slots, fingerprint, batch_threads


class Threads:
    """Patches torch's loader so that chosen loaders build their batches in threads. `tell` receives the reason when a
    loader does not get threads or loses them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._expected = 0
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()
        self._patches: Patches | None = None  # None before `prepare`, and after draws were redirected

    def expect(self, count: int) -> None:
        """Sets how many threads the next loader gets. 0 means none."""
        self._expected = count

    def install(self, patches: Patches) -> None:
        """Gives threads to loaders that are built from now on, as `expect` says."""
        self.prepare(patches)
        patches.around(DataLoader, "__init__", "threads.init", None, self._after_init)
        patches.replace(DataLoader, "_get_iterator", self._starting(DataLoader._get_iterator))

    def prepare(self, patches: Patches) -> None:
        self._patches = patches
        patches.on_close(dismiss_all)

    def give(self, loader: Any, count: int) -> None:
        self._counts[loader] = count

    def has(self, loader: Any) -> bool:
        return loader in self._counts

    def _after_init(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._expected:
            self._counts[args[0]] = self._expected
            self._expected = 0

    def _starting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _get_iterator(loader: Any) -> Any:
            return self.iterator_of(loader, lambda: original(loader))

        return _get_iterator

    def iterator_of(self, loader: Any, original: Callable[[], Any]) -> Any:
        """Returns an iterator with threads. For a loader without threads, returns the iterator that `original`
        makes."""
        if loader not in self._counts or is_beside() or _is_unusual():
            return original()
        generators = save_generators(loader)
        try:
            return self._start(loader)
        except UncopyableError as fault:
            self._retire(loader, f"{type(loader.dataset).__name__}: {fault}")
        except Exception as fault:
            self._retire(loader, f"the threads could not be started ({type(fault).__name__}: {fault})")
        generators.restore()
        return original()  # raises an error of the script again

    def _start(self, loader: Any) -> ThreadedIter:
        if self._patches is not None:
            redirect_draws(self._patches)  # done late, because most modules of the program are imported by now
            self._patches = None
        count = self._counts[loader]
        if loader.num_workers:  # new copies, because workers would get the dataset as it is at the start of the epoch
            return ThreadedIter(loader, _slots(loader, max(count, loader.num_workers)), count, self._retire)
        fingerprint = fingerprint_of(loader)
        slots = self._reusable_slots(loader, fingerprint) or _slots(loader, count)
        iterator = ThreadedIter(loader, slots, count, self._retire)
        self._kept[loader] = _Kept(slots, fingerprint, iterator.batch_threads)
        return iterator

    def _reusable_slots(self, loader: Any, fingerprint: dict[str, Any]) -> list[WorkerSlot] | None:
        """Returns the slots of the last epoch, with everything that their datasets have opened or cached. Returns None
        if the slots cannot be used again."""
        kept = self._kept.pop(loader, None)
        if kept is None or not kept.batch_threads.is_over:  # the last iterator is still being read
            return None
        if difference(kept.fingerprint, fingerprint) or unread(fingerprint):
            return None
        kept.batch_threads.join()  # if the epoch was left early, a thread may still be building a batch
        return kept.slots

    def _retire(self, loader: Any, why: str) -> None:
        if loader is not None:
            self._counts.pop(loader, None)
            self._kept.pop(loader, None)
        self._tell(f"a loader continues without threads: {why}")


def _slots(loader: Any, count: int) -> list[WorkerSlot]:
    copies = duplicate((loader.dataset, loader.collate_fn), count)
    return [WorkerSlot(fetcher_of(loader, dataset, collate_fn)) for dataset, collate_fn in copies]


def _is_unusual() -> bool:
    """Whether a mode is active that belongs to the script's thread and changes what its dataset computes, such as a
    default device or autocast."""
    num_modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return bool(num_modes) or torch.is_autocast_enabled("cpu")
