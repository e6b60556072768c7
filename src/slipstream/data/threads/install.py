"""Threads behind a script's own loaders: which loaders have them, what is kept from epoch to epoch, and the way back. A
loader is not changed: without us it is what the script built."""

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
from slipstream.data.workers.loader_fingerprint import fingerprint_of, generator_states, restore
from slipstream.seams.data_threads import is_beside
from slipstream.seams.patching import Patches


class _Kept:
    """The seats of one loader's last epoch, and who used them."""

    def __init__(self, slots: list[WorkerSlot], fingerprint: dict[str, Any], batch_threads: BatchThreads) -> None:
        self.slots, self.fingerprint, self.batch_threads = slots, fingerprint, batch_threads


class Threads:
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell  # why it is not done, or no longer
        self._expected = 0
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()
        self._patches: Patches | None = None  # until draws are redirected

    def expect(self, count: int) -> None:
        """How many threads the loader that is being built now is to have; 0 for none."""
        self._expected = count

    def install(self, patches: Patches) -> None:
        self._patches = patches
        patches.on_close(dismiss_all)
        patches.around(DataLoader, "__init__", "threads.init", None, self._after_init)
        patches.replace(DataLoader, "_get_iterator", self._starting(DataLoader._get_iterator))

    def _after_init(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._expected:
            self._counts[args[0]] = self._expected
            self._expected = 0

    def _starting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _get_iterator(loader: Any) -> Any:
            if loader not in self._counts or is_beside() or _is_unusual():
                return original(loader)
            states = generator_states(loader)
            try:
                return self._start(loader)
            except UncopyableError as fault:
                self._retire(loader, f"{type(loader.dataset).__name__}: {fault}")
            except Exception as fault:
                self._retire(loader, f"the threads could not be started ({type(fault).__name__}: {fault})")
            restore(states)
            return original(loader)  # raises again what was the script's own

        return _get_iterator

    def _start(self, loader: Any) -> ThreadedIter:
        if self._patches is not None:
            redirect_draws(self._patches)  # not before: most of a program's modules are there by now
            self._patches = None
        count = self._counts[loader]
        if loader.num_workers:  # the script's own workers see the dataset as it is when an epoch begins
            return ThreadedIter(loader, _slots(loader, max(count, loader.num_workers)), count, self._retire)
        fingerprint = fingerprint_of(loader)
        slots = self._seats_again(loader, fingerprint) or _slots(loader, count)
        iterator = ThreadedIter(loader, slots, count, self._retire)
        self._kept[loader] = _Kept(slots, fingerprint, iterator.batch_threads)
        return iterator

    def _seats_again(self, loader: Any, fingerprint: dict[str, Any]) -> list[WorkerSlot] | None:
        """Those of the last epoch, with whatever their datasets opened or keep; None where they do not serve."""
        kept = self._kept.pop(loader, None)
        if kept is None or not kept.batch_threads.is_over:  # somebody is still reading
            return None
        if difference(kept.fingerprint, fingerprint) or unread(fingerprint):
            return None
        kept.batch_threads.join()  # of an epoch that was left early: a batch may still be on its way
        return kept.slots

    def _retire(self, loader: Any, why: str) -> None:
        if loader is not None:
            self._counts.pop(loader, None)
            self._kept.pop(loader, None)
        self._tell(f"a loader goes on without threads: {why}")


def _slots(loader: Any, count: int) -> list[WorkerSlot]:
    copies = duplicate((loader.dataset, loader.collate_fn), count)
    return [WorkerSlot(fetcher_of(loader, dataset, collate_fn)) for dataset, collate_fn in copies]


def _is_unusual() -> bool:
    """Modes that belong to the script's thread and change what its dataset computes: a default device, autocast."""
    num_modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return bool(num_modes) or torch.is_autocast_enabled("cpu")
