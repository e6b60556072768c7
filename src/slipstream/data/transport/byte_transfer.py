"""Copies image batches to the device as bytes. Workers pack the batches that they send. When the script asks for the
floats on the device, the bytes are copied there and converted to the same floats. A batch that was changed in between
is copied as floats. The first copies are made in both ways and compared on the device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import worker

from slipstream.data.transport.byte_packing import Packed, PackedBatches, Packer, is_image_batch, unpack
from slipstream.data.transport.copy_calls import NAMES, read_copy, waits_not
from slipstream.data.transport.nonblocking import is_accelerator
from slipstream.data.workers.worker_loop import DATA_QUEUE, WorkerLoop, check_arguments
from slipstream.seams.nested import walk_tensors
from slipstream.seams.patching import Patches, Substitute

_PROVED = 3  # copies that are made in both ways and compared


class ByteCopies:
    def __init__(
        self,
        on_change: Callable[[], None],
        tell: Callable[[str], None],
        is_target: Callable[[torch.device], bool] = is_accelerator,
    ) -> None:
        self._on_change = on_change
        self._tell = tell
        self._is_target = is_target
        self._payloads = PackedBatches()
        self._packers: dict[str, Packer] = {}  # by the tensor's path in the batch
        self._num_unproved = _PROVED
        self._in_service = True
        self._to = torch.Tensor.to  # the original, because `install` wraps this method

    def install(self, patches: Patches) -> None:
        self._payloads.install(patches)
        check_arguments()
        patches.replace(worker, "_worker_loop", PackingLoop(worker._worker_loop, self.pack))
        for name in NAMES:
            patches.around(torch.Tensor, name, f"bytes.{name}", self._serving(name), _after_copy)

    # --- in the worker -----------------------------------------------------------------------------------------------

    def pack(self, batch: Any) -> None:
        for path, tensor in walk_tensors(batch):
            if is_image_batch(tensor):
                packed = self._packers.setdefault(path, Packer()).pack(tensor)
                if packed is not None:
                    self._payloads.add(tensor, packed)

    # --- in the script's process -------------------------------------------------------------------------------------

    def _serving(self, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Substitute | None]:
        def serve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Substitute | None:
            packed = self._payloads.of(args[0]) if self._in_service else None
            asked = read_copy(name, args, kwargs) if packed is not None else None
            if packed is None or asked is None or not asked.is_plain or not self._is_target(asked.device):
                return None
            return Substitute(self._copy(args[0], packed, asked.device, waits_not(args, kwargs)))

        return serve

    def _copy(self, tensor: torch.Tensor, packed: Packed, device: torch.device, non_blocking: bool) -> torch.Tensor:
        there = Packed(*(self._to(part, device, non_blocking=non_blocking) for part in packed))
        copy = unpack(there)
        if self._num_unproved:
            self._num_unproved -= 1
            plain = self._to(tensor, device, copy=True)
            if not torch.equal(copy.view(torch.int32), plain.view(torch.int32)):
                self._in_service = False
                self._tell("batches are copied as floats again, because the bytes became other floats on the device")
                return plain
        self._on_change()
        return copy


class PackingLoop(WorkerLoop):
    """Torch's own worker loop, but each batch is packed when it is sent. It works in forked workers only."""

    def __init__(self, original: Callable[..., None], pack: Callable[[Any], None]) -> None:
        super().__init__(original)
        self._pack = pack

    def __call__(self, *args: Any) -> None:
        queue = PackingQueue(args[DATA_QUEUE], self._pack)
        self._original(*args[:DATA_QUEUE], queue, *args[DATA_QUEUE + 1 :])


class PackingQueue:
    def __init__(self, queue: Any, pack: Callable[[Any], None]) -> None:
        self._queue = queue
        self._pack = pack

    def put(self, message: Any) -> None:
        if type(message) is tuple:
            with contextlib.suppress(Exception):  # after an error the batch is sent without packed bytes
                self._pack(message[1])
        self._queue.put(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _after_copy(token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Does nothing, because the original method made this copy."""
