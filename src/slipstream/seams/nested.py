"""Takes nested structures apart: batches, and the arguments and results of calls.

Containers are lists and tuples with their subclasses, deques, all mappings and all dataclasses. Other classes that a
framework registers with pytree are not taken apart. The model may change an object of these classes, for example a
cache of keys and values, and a rebuilt object would not be the script's own."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import is_
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES

_NODES = {kind: SUPPORTED_NODES[kind] for kind in (list, tuple, dict, OrderedDict, defaultdict, deque)}
_ATOMS = (str, bytes, int, float, type(None))
_MAX_DEPTH = 8  # Depth is limited because a container may contain itself.
_MAX_WALK_DEPTH = 6
_MAX_WALKED = 32  # Largest number of elements of a sequence, or of attributes of an object, that are read
_POSITIONS = tuple(f"[{position}]" for position in range(_MAX_WALKED))


def take_apart(thing: Any) -> tuple[Collection[Any], Any] | None:
    """Returns the parts of a container in a fixed order, and the context that `rebuild` needs. Returns None for
    anything that is not a container."""
    node = _NODES.get(type(thing))
    if node is not None:
        return node.flatten_fn(thing)
    if isinstance(thing, (list, tuple)):
        return thing, None
    if isinstance(thing, Mapping):  # For example Hugging Face's BatchEncoding and ModelOutput
        return list(thing.values()), list(thing)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        names = [field.name for field in dataclasses.fields(thing)]
        return [getattr(thing, name, None) for name in names], names
    return None


def rebuild(thing: Any, parts: Collection[Any], context: Any) -> Any:
    """Returns a container like `thing` with other parts. A container that cannot be rebuilt is returned itself."""
    node = _NODES.get(type(thing))
    if node is not None:
        return node.unflatten_fn(parts, context)
    try:
        if context is None:  # A named tuple takes its parts as separate arguments.
            return type(thing)(*parts) if hasattr(thing, "_fields") else type(thing)(parts)
        rebuilt = copy.copy(thing)
        is_mapping = isinstance(thing, Mapping)
        for name, part in zip(context, parts, strict=True):
            if is_mapping:
                rebuilt[name] = part
            elif part is not getattr(thing, name, None):
                object.__setattr__(rebuilt, name, part)  # This also works for a field of a frozen class.
    except (TypeError, AttributeError):
        return thing
    return rebuilt


def map_tensors(thing: Any, change: Callable[[torch.Tensor], Any], depth: int = 0) -> Any:
    """Returns the structure with changed tensors. Containers without a changed tensor stay the same objects."""
    if isinstance(thing, torch.Tensor):
        return change(thing)
    taken = take_apart(thing) if depth < _MAX_DEPTH else None
    if taken is None:
        return thing
    before, context = taken
    parts = [map_tensors(part, change, depth + 1) for part in before]
    return thing if all(map(is_, parts, before)) else rebuild(thing, parts, context)


def leaves_of(thing: Any) -> list[Any]:
    """Returns the tensors and everything else that is not a container, in the order of `map_tensors`."""
    leaves: list[Any] = []
    _add_leaves(thing, leaves, 0)
    return leaves


def _add_leaves(thing: Any, leaves: list[Any], depth: int) -> None:
    taken = None if isinstance(thing, torch.Tensor) or depth == _MAX_DEPTH else take_apart(thing)
    if taken is None:
        leaves.append(thing)
        return
    for part in taken[0]:
        _add_leaves(part, leaves, depth + 1)


def tensors_of(thing: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves_of(thing) if isinstance(leaf, torch.Tensor)]


def walk_tensors(thing: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors in containers and in the attributes of other objects, each with its path. Only the first
    elements of a long sequence are read, because this function may be called for every batch."""
    if isinstance(thing, torch.Tensor):
        yield path, thing
        return
    is_mapping = False
    if isinstance(thing, (list, tuple, deque)):
        named: Iterable[tuple[Any, Any]] = zip(_POSITIONS, thing, strict=False)
    elif isinstance(thing, Mapping):
        named, is_mapping = thing.items(), True
    else:
        named = _named_attributes(thing)
    for name, part in named:
        if isinstance(part, _ATOMS):
            continue
        inner = f"{path}[{name!r}]" if is_mapping else path + name
        if isinstance(part, torch.Tensor):
            yield inner, part
        elif depth + 1 < _MAX_WALK_DEPTH:
            yield from walk_tensors(part, inner, depth + 1)


def _named_attributes(thing: Any) -> list[tuple[str, Any]]:
    if hasattr(thing, "__dict__"):  # A dataclass may have attributes that are not fields, so its __dict__ is read too.
        attributes = [] if isinstance(thing, (type, torch.nn.Module)) else list(vars(thing).items())[:_MAX_WALKED]
        return [(f".{name}", value) for name, value in attributes]
    if dataclasses.is_dataclass(thing):
        return [(f".{field.name}", getattr(thing, field.name, None)) for field in dataclasses.fields(thing)]
    return []
