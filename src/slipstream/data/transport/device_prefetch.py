"""Copies the next batch to the device while the step runs. The script gets its batch as the loader made it. When the
script asks for a tensor of the batch on the device, it receives the finished copy. If the script stops asking for a
tensor, the tensor is no longer copied."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.data.threads.iterator import ThreadedIter
from slipstream.data.transport.copy_calls import NAMES, read_copy
from slipstream.data.transport.copy_stream import Device
from slipstream.data.transport.live_batches import LiveBatches
from slipstream.seams.nested import walk_tensors
from slipstream.seams.patching import Patches, Substitute

_MOST_MISSES = 3  # after this many unused copies in a row, a tensor is no longer copied


class CopyInFlight:
    """The started copy of one tensor."""

    def __init__(self, tensor: torch.Tensor, copy: torch.Tensor, ticket: Any) -> None:
        self.source = tensor
        self.version = tensor._version  # an in-place change makes the copy stale
        self.copy = copy
        self.ticket = ticket


class CopiedBatch:
    """A batch and its started copies, or the exception that was raised instead of the batch."""

    def __init__(self, batch: Any = None, fault: Exception | None = None) -> None:
        self.batch = batch
        self.fault = fault
        self.copies: dict[str, CopyInFlight] = {}


class DevicePrefetch:
    def __init__(self, device: Device, tell: Callable[[str], None], on_change: Callable[[], None]) -> None:
        self._device = device
        self._tell = tell
        self._on_change = on_change
        self._in_service = True
        self._next: weakref.WeakKeyDictionary[Any, CopiedBatch] = weakref.WeakKeyDictionary()  # by iterator
        # The tensors that the script copies and their devices, by dataset.
        self._wanted: dict[int, dict[str, torch.device]] = {}
        self._misses: dict[tuple[int, str], int] = {}
        self._live_batches = LiveBatches()  # tensors of the last returned batch, with their dataset and path
        self._copies: dict[int, CopyInFlight] = {}  # by the id of the source, which CopyInFlight keeps alive
        self._last: tuple[int, dict[str, int]] | None = None  # the dataset, and the id of each copied tensor by path
        self._has_changed = False

    def install(self, patches: Patches) -> None:
        patches.replace(_BaseDataLoaderIter, "__next__", self._asking(_BaseDataLoaderIter.__next__))
        patches.around(DataLoader, "__iter__", "device_prefetch.iter", None, self._after_iter)
        for name in NAMES:
            patches.around(torch.Tensor, name, f"ahead.{name}", self._serving(name), self._learn)
        patches.on_close(self._copies.clear)

    # --- batches -----------------------------------------------------------------------------------------------------

    def _after_iter(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._next.pop(result, None)  # if the iterator was reset, its prefetched batch belongs to the last epoch

    def _asking(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __next__(iterator: Any) -> Any:  # noqa: N807
            if not self._in_service and iterator not in self._next:
                return original(iterator)
            loaded = self._next.pop(iterator, None) or self._load(iterator, original)
            if loaded.fault is not None:
                raise loaded.fault
            self._hand_out(id(iterator._dataset), loaded)
            if self._in_service and _is_next_ready(iterator):
                self._next[iterator] = self._load_early(iterator, original)
            return loaded.batch

        return __next__

    def _load_early(self, iterator: Any, original: Callable[[Any], Any]) -> CopiedBatch:
        try:
            return self._load(iterator, original)
        except Exception as fault:  # raised when the script asks for this batch
            return CopiedBatch(fault=fault)

    def _load(self, iterator: Any, original: Callable[[Any], Any]) -> CopiedBatch:
        loaded = CopiedBatch(original(iterator))
        wanted = self._wanted.get(id(iterator._dataset))
        if wanted and self._in_service:
            try:
                self._send(loaded, wanted)
            except Exception as fault:  # most likely out of memory; the script makes its own copies
                loaded.copies.clear()
                self._retire(f"{type(fault).__name__}: {fault}")
        return loaded

    def _send(self, loaded: CopiedBatch, wanted: dict[str, torch.device]) -> None:
        for path, tensor in walk_tensors(loaded.batch):
            if path in wanted and type(tensor) is torch.Tensor and not tensor.requires_grad:
                loaded.copies[path] = CopyInFlight(tensor, *self._device.start(tensor, wanted[path]))

    def _hand_out(self, dataset: int, loaded: CopiedBatch) -> None:
        self._settle()
        self._live_batches = LiveBatches()
        self._copies = {id(in_flight.source): in_flight for in_flight in loaded.copies.values()}
        for path, tensor in walk_tensors(loaded.batch):
            self._live_batches.add(tensor, (dataset, path))
        self._last = dataset, {path: id(in_flight.source) for path, in_flight in loaded.copies.items()}

    def _settle(self) -> None:
        """Counts copies of the last batch that the script did not use. A tensor whose copy is unused three times in a
        row is no longer copied."""
        if self._last is None:
            return
        dataset, copied = self._last
        for path, tensor in copied.items():
            missed = self._misses.get((dataset, path), 0) + 1 if tensor in self._copies else 0
            self._misses[dataset, path] = missed
            if missed == _MOST_MISSES:
                self._wanted[dataset].pop(path, None)

    # --- copies ------------------------------------------------------------------------------------------------------

    def _serving(self, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Substitute | None]:
        def serve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Substitute | None:
            in_flight = self._copies.get(id(args[0]))
            if in_flight is None or in_flight.source is not args[0]:
                return None
            asked = read_copy(name, args, kwargs)
            if asked is None or not asked.is_plain or asked.device != in_flight.copy.device:
                return None
            del self._copies[id(args[0])]  # a second call must return a different tensor
            if in_flight.version != args[0]._version:
                return None
            self._device.receive(in_flight.copy, in_flight.ticket)
            if not self._has_changed:
                self._has_changed = True
                self._on_change()
            return Substitute(in_flight.copy)

        return serve

    def _learn(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        source = args[0]
        note = self._live_batches.note_on(source)
        if note is None or result is source or not self._device.accepts(result.device):
            return
        dataset, path = note
        if result.dtype == source.dtype and self._misses.get((dataset, path), 0) < _MOST_MISSES:
            self._wanted.setdefault(dataset, {}).setdefault(path, result.device)

    def _retire(self, why: str) -> None:
        self._in_service = False
        self._copies.clear()
        self._tell(f"batches are no longer copied ahead: {why}")


def _is_next_ready(iterator: Any) -> bool:
    """Whether a worker or a thread has already built the next batch. Without workers and threads, the batch would have
    to be built now, before the next step, and its random numbers would be drawn too early."""
    if isinstance(iterator, ThreadedIter):
        return iterator.is_next_ready()
    info = getattr(iterator, "_task_info", None)
    if info is None or iterator._rcvd_idx >= iterator._send_idx:
        return False
    return len(info.get(iterator._rcvd_idx, ())) == 2 or not iterator._data_queue.empty()
