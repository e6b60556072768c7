"""Calls that copy a tensor to a device, read without making them: from what, to where, and whether the host waits."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

NAMES = tuple(name for name in ("to", "cuda", "xpu") if hasattr(torch.Tensor, name))
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Copy(msgspec.Struct, frozen=True):
    device: torch.device
    dtype: torch.dtype | None  # None: as it is
    is_plain: bool  # nothing but the place changes


def read_copy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    """`args` with the tensor in front. None: this call names no device, or is not one that we know."""
    try:
        if name == "to":
            return _read_to(args, kwargs)
        device = torch.device(name, _index(kwargs.get("device", args[1] if len(args) > 1 else None), name))
    except Exception:  # what torch itself will refuse is not ours to say
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
    """The same call with non_blocking=True; None where the script itself gave the flag by position."""
    if any(isinstance(value, bool) for value in args[1:]):
        return None
    return args, {**kwargs, "non_blocking": True}


def waits_not(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call itself asks for non_blocking; by position it is the first flag."""
    flags = [value for value in args[1:] if isinstance(value, bool)]
    return bool(kwargs.get("non_blocking", flags[0] if flags else False))
