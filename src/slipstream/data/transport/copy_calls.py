"""Interprets the arguments of calls that copy a tensor to a device, without making the call: the target device, the
dtype, and whether the host waits."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

NAMES = tuple(name for name in ("to", "cuda", "xpu") if hasattr(torch.Tensor, name))
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Copy(msgspec.Struct, frozen=True):
    device: torch.device
    dtype: torch.dtype | None  # None: unchanged
    is_plain: bool  # whether nothing but the device changes


def read_copy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    """Returns the copy that a call makes, or None if the call names no device or is unknown. `args` starts with the
    tensor."""
    try:
        if name == "to":
            return _read_to(args, kwargs)
        device = torch.device(name, _index(kwargs.get("device", args[1] if len(args) > 1 else None), name))
    except Exception:  # torch itself reports invalid arguments
        return None
    return Copy(device, None, kwargs.get("memory_format") in (None, torch.preserve_format))


def _read_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    named = {key: value for key, value in kwargs.items() if key not in ("non_blocking", "copy")}
    device, dtype, _, layout = torch._C._nn._parse_to(*args[1:], **named)
    if device is None:
        return None
    if device.type not in ("cpu", "meta") and device.index is None:
        device = torch.device(device.type, _index(None, device.type))
    return Copy(device, dtype, dtype in (None, args[0].dtype) and layout in (None, torch.preserve_format))


def _index(device: Any, kind: str) -> int:
    if device is None:
        return int(torch.get_device_module(kind).current_device())
    return device if isinstance(device, int) else int(torch.device(device).index or 0)


def without_waiting(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """Returns the same arguments with non_blocking=True, or None if the script passed the flag by position."""
    if any(isinstance(value, bool) for value in args[1:]):
        return None
    return args, {**kwargs, "non_blocking": True}


def waits_not(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call itself sets non_blocking. Among positional arguments it is the first bool."""
    flags = [value for value in args[1:] if isinstance(value, bool)]
    return bool(kwargs.get("non_blocking", flags[0] if flags else False))
