"""Changes the tensors inside a module's arguments or results and keeps the structure around them: tuples stay tuples,
and a framework's output class stays that class. If nothing changes, the same object is returned."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

_MAX_DEPTH = 8

Change = Callable[[torch.Tensor], torch.Tensor]


def convert(thing: Any, change: Change, depth: int = 0) -> Any:
    """Returns a shallow copy with the changed tensors. Objects that cannot be copied and refilled are returned
    unchanged."""
    if isinstance(thing, torch.Tensor):
        return change(thing)
    if depth == _MAX_DEPTH:
        return thing
    if isinstance(thing, (tuple, list)):
        return _convert_sequence(thing, change, depth)
    if isinstance(thing, Mapping):  # includes Hugging Face's ModelOutput, which keeps its attributes in sync
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
    if hasattr(thing, "_fields"):  # a named tuple takes its parts as separate arguments
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
