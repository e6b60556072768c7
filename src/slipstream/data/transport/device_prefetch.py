"""Copies the next batch to the device while the step runs. The script gets its batch as the loader made it; when it
asks for a tensor of it on the device, the copy is there. What it does not ask for is not copied a second time."""

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
from slipstream.seams.batches import walk_tensors
from slipstream.seams.patching import Patches, Substitute

_MOST_MISSES = 3  # copies in a row that nobody asked for: the script has changed its ways


class CopyInFlight:
    """One tensor on its way."""

    def __init__(self, tensor: torch.Tensor, copy: torch.Tensor, ticket: Any) -> None:
        self.source = tensor
        self.version = tensor._version  # a change in place makes the copy stale
        self.copy = copy
        self.ticket = ticket


class CopiedBatch:
    """A batch and what of it is on its way; or the exception that came in place of it."""

    def __init__(self, batch: Any = None, fault: Exception | None = None) -> None:
        self.batch = batch
        self.fault = fault
        self.flights: dict[str, CopyInFlight] = {}


class DevicePrefetch:
    def __init__(self, device: Device, tell: Callable[[str], None], on_change: Callable[[], None]) -> None:
        self._device = device
        self._tell = tell
        self._on_change = on_change
        self._in_service = True
        self._next: weakref.WeakKeyDictionary[Any, CopiedBatch] = weakref.WeakKeyDictionary()  # by iterator
        self._wanted: dict[int, dict[str, torch.device]] = {}  # by dataset: which tensors the script copies, and where
        self._misses: dict[tuple[int, str], int] = {}
        self._live_batches = LiveBatches()  # tensors of the batch handed out last, with dataset and path
        self._flights: dict[int, CopyInFlight] = {}  # by the tensor's id, which the flight keeps alive
        self._last: tuple[int, dict[str, int]] | None = None  # dataset, and of each copy its path and tensor's id
        self._has_changed = False

    def install(self, patches: Patches) -> None:
        patches.replace(_BaseDataLoaderIter, "__next__", self._asking(_BaseDataLoaderIter.__next__))
        patches.around(DataLoader, "__iter__", "ahead.iter", None, self._after_iter)
        for name in NAMES:
            patches.around(torch.Tensor, name, f"ahead.{name}", self._serving(name), self._learn)
        patches.on_close(self._flights.clear)

    # --- batches -----------------------------------------------------------------------------------------------------

    def _after_iter(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._next.pop(result, None)  # a rewound iterator: what was ahead belonged to the last epoch

    def _asking(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __next__(iterator: Any) -> Any:  # noqa: N807
            if not self._in_service and iterator not in self._next:
                return original(iterator)
            cargo = self._next.pop(iterator, None) or self._load(iterator, original)
            if cargo.fault is not None:
                raise cargo.fault
            self._hand_out(id(iterator._dataset), cargo)
            if self._in_service and _is_next_ready(iterator):
                self._next[iterator] = self._load_early(iterator, original)
            return cargo.batch

        return __next__

    def _load_early(self, iterator: Any, original: Callable[[Any], Any]) -> CopiedBatch:
        try:
            return self._load(iterator, original)
        except Exception as fault:  # kept until the script asks for the batch that it belongs to
            return CopiedBatch(fault=fault)

    def _load(self, iterator: Any, original: Callable[[Any], Any]) -> CopiedBatch:
        cargo = CopiedBatch(original(iterator))
        wanted = self._wanted.get(id(iterator._dataset))
        if wanted and self._in_service:
            try:
                self._send(cargo, wanted)
            except Exception as fault:  # out of memory, most likely: the script copies for itself
                cargo.flights.clear()
                self._retire(f"{type(fault).__name__}: {fault}")
        return cargo

    def _send(self, cargo: CopiedBatch, wanted: dict[str, torch.device]) -> None:
        for path, tensor in walk_tensors(cargo.batch):
            if path in wanted and type(tensor) is torch.Tensor and not tensor.requires_grad:
                cargo.flights[path] = CopyInFlight(tensor, *self._device.start(tensor, wanted[path]))

    def _hand_out(self, dataset: int, cargo: CopiedBatch) -> None:
        self._settle()
        self._live_batches = LiveBatches()
        self._flights = {id(flight.source): flight for flight in cargo.flights.values()}
        for path, tensor in walk_tensors(cargo.batch):
            self._live_batches.add(tensor, (dataset, path))
        self._last = dataset, {path: id(flight.source) for path, flight in cargo.flights.items()}

    def _settle(self) -> None:
        """Copies of the last batch that nobody asked for are given up; three times in a row, and no more are made."""
        if self._last is None:
            return
        dataset, copied = self._last
        for path, tensor in copied.items():
            missed = self._misses.get((dataset, path), 0) + 1 if tensor in self._flights else 0
            self._misses[dataset, path] = missed
            if missed == _MOST_MISSES:
                self._wanted[dataset].pop(path, None)

    # --- copies ------------------------------------------------------------------------------------------------------

    def _serving(self, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Substitute | None]:
        def serve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Substitute | None:
            flight = self._flights.get(id(args[0]))
            if flight is None or flight.source is not args[0]:
                return None
            asked = read_copy(name, args, kwargs)
            if asked is None or not asked.is_plain or asked.device != flight.copy.device:
                return None
            del self._flights[id(args[0])]  # a second copy is a second tensor
            if flight.version != args[0]._version:
                return None
            self._device.receive(flight.copy, flight.ticket)
            if not self._has_changed:
                self._has_changed = True
                self._on_change()
            return Substitute(flight.copy)

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
        self._flights.clear()
        self._tell(f"no batch is copied ahead any more: {why}")


def _is_next_ready(iterator: Any) -> bool:
    """A worker has built the next batch: taking it costs no waiting. Without workers it would have to be built first,
    before the step that is about to run, and its random numbers would be drawn out of turn."""
    if isinstance(iterator, ThreadedIter):
        return iterator.is_next_ready()
    info = getattr(iterator, "_task_info", None)
    if info is None or iterator._rcvd_idx >= iterator._send_idx:
        return False
    return len(info.get(iterator._rcvd_idx, ())) == 2 or not iterator._data_queue.empty()
