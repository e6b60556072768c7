"""The seams for host-to-device copies, and for calls in which the host waits for the device. They are installed only if
a model is on an accelerator. A predicate decides which tensors are on the device, so tests can run without a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from slipstream.seams.listener import Listener, Token
from slipstream.seams.patching import Patches
from slipstream.seams.user_code import current_site

_COPIES = ("to", "cuda", "xpu")
_SYNCS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__repr__")


def is_on_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type not in ("cpu", "meta")


class TransferSeam:
    def __init__(self, listener: Listener, on_device: Callable[[torch.Tensor], bool] = is_on_device) -> None:
        self._listener = listener
        self._on_device = on_device

    def install(self, patches: Patches) -> None:
        for name in _COPIES:
            if hasattr(torch.Tensor, name):
                patches.around(torch.Tensor, name, f"tensor.{name}", self._before, self._after, self._abandon)
        for name in ("to", "cuda", "xpu"):
            if hasattr(torch.nn.Module, name):
                patches.around(
                    torch.nn.Module, name, f"module.{name}", self._before_module, self._after_module, self._abandon
                )

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        return None if self._on_device(args[0]) else self._listener.enter("transfer")

    def _after(self, token: Token | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if token is None:
            return
        source = args[0]
        if result is source or not self._on_device(result):
            self._listener.abandon(token)  # Nothing was copied to the device. The call may have changed the dtype.
            return
        self._listener.leave(
            token,
            "transfer",
            self._listener.place(current_site()),
            num_bytes=source.numel() * source.element_size(),
            pinned=source.is_pinned(),
            blocking=not _asks_non_blocking(args, kwargs),
        )

    def _abandon(self, token: Token | None) -> None:
        self._listener.abandon(token)

    def _before_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        return self._listener.enter("transfer")

    def _after_module(self, token: Token | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        moved = sum(p.numel() * p.element_size() for p in args[0].parameters() if self._on_device(p))
        if not moved:
            self._listener.abandon(token)
            return
        self._listener.leave(token, "transfer", self._listener.place(current_site()), num_bytes=moved, blocking=True)


def _asks_non_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if "non_blocking" in kwargs:
        return bool(kwargs["non_blocking"])
    flags = [value for value in args[1:] if isinstance(value, bool)]
    return bool(flags and flags[0])


class SyncSeam:
    """Calls that make the host wait until the device has finished its queued work."""

    def __init__(self, listener: Listener, on_device: Callable[[torch.Tensor], bool] = is_on_device) -> None:
        self._listener = listener
        self._on_device = on_device
        self._is_inside = False

    def install(self, patches: Patches) -> None:
        for name in _SYNCS:
            patches.around(torch.Tensor, name, f"sync.{name}", self._before, self._after, self._abandon)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        if self._is_inside or not self._on_device(args[0]):
            return None
        self._is_inside = True  # Printing a tensor calls item() many times. All of these calls are one event.
        return self._listener.enter(self._listener.phase)

    def _after(self, token: Token | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if token is not None:
            self._is_inside = False
            self._listener.leave(token, "sync", self._listener.place(current_site()))

    def _abandon(self, token: Token | None) -> None:
        if token is not None:
            self._is_inside = False
            self._listener.abandon(token)
