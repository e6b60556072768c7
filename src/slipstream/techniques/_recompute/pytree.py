"""Changes the tensors inside what a module takes or returns, and leaves everything around them as it was: tuples stay
tuples, a framework's own output class stays that class. Where nothing changes, the very same object comes back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

_MAX_DEPTH = 8

Change = Callable[[torch.Tensor], torch.Tensor]


def convert(thing: Any, change: Change, depth: int = 0) -> Any:
    """A shallow copy with the changed tensors in it. What cannot be copied and filled again is left alone."""
    if isinstance(thing, torch.Tensor):
        return change(thing)
    if depth == _MAX_DEPTH:
        return thing
    if isinstance(thing, (tuple, list)):
        return _convert_sequence(thing, change, depth)
    if isinstance(thing, Mapping):  # a Hugging Face ModelOutput is one too, and keeps its attributes in step
        parts = {key: convert(value, change, depth + 1) for key, value in thing.items()}
        return _filled(thing, {key: value for key, value in parts.items() if value is not thing[key]}, is_mapping=True)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        before = {field.name: getattr(thing, field.name, None) for field in dataclasses.fields(thing)}
        parts = {name: convert(value, change, depth + 1) for name, value in before.items()}
        return _filled(thing, {name: value for name, value in parts.items() if value is not before[name]})
    return thing


def _convert_sequence(thing: Any, change: Change, depth: int) -> Any:
    parts = [convert(value, change, depth + 1) for value in thing]
    if all(new is old for new, old in zip(parts, thing, strict=True)):
        return thing
    if hasattr(thing, "_fields"):  # a named tuple takes its parts one by one
        return type(thing)(*parts)
    return parts if type(thing) is list else tuple(parts) if type(thing) is tuple else _rebuilt(thing, parts)


def _rebuilt(thing: Any, parts: list[Any]) -> Any:
    try:
        return type(thing)(parts)
    except TypeError:
        return thing


def _filled(thing: Any, changed: dict[Any, Any], is_mapping: bool = False) -> Any:
    if not changed:
        return thing
    try:
        control = copy.copy(thing)
        for key, value in changed.items():
            if is_mapping:
                control[key] = value
            else:
                object.__setattr__(control, key, value)
    except (TypeError, AttributeError):
        return thing
    return control
