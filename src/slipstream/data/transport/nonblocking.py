"""Makes the host not wait for copies of loaders' batches to the device. Only copies to the device from pinned memory
that a loader returned are changed. A copy from the device, or from a buffer that the script overwrites, would be a data
race without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.data.transport.copy_calls import NAMES, Arguments, read_copy, without_waiting
from slipstream.data.transport.live_batches import LiveBatches
from slipstream.seams.nested import walk_tensors
from slipstream.seams.patching import Patches, rewrite_arguments


def is_accelerator(device: torch.device) -> bool:
    return device.type in ("cuda", "xpu")


class NonBlockingCopies:
    def __init__(
        self,
        on_change: Callable[[], None],
        is_target: Callable[[torch.device], bool] = is_accelerator,
        is_pinned: Callable[[torch.Tensor], bool] = torch.Tensor.is_pinned,
    ) -> None:
        self._on_change = on_change
        self._is_target = is_target
        self._is_pinned = is_pinned
        self._live_batches = LiveBatches()
        self._has_changed = False

    def install(self, patches: Patches) -> None:
        patches.around(_BaseDataLoaderIter, "__next__", "nonblocking.batch", None, self._after_batch)
        for name in NAMES:
            rewrite_arguments(patches, torch.Tensor, name, f"nonblocking.{name}", self._rewriting(name))

    def _after_batch(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        for _, tensor in walk_tensors(result):
            if self._is_pinned(tensor):
                self._live_batches.add(tensor)

    def _rewriting(self, name: str) -> Callable[..., Any]:
        def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
            if not self._live_batches or not self._live_batches.holds(args[0]):
                return None
            copy = read_copy(name, args, kwargs)
            if copy is None or not self._is_target(copy.device):
                return None
            changed = without_waiting(name, args, kwargs)
            if changed is not None and not kwargs.get("non_blocking") and not self._has_changed:
                self._has_changed = True
                self._on_change()
            return changed

        return rewrite
