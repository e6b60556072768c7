"""What hangs on a dataset: its attributes, those of its transforms and of the datasets it wraps, to a small depth.
Looks, never calls: a property of the user's is not evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from logging import Logger
from types import FunctionType, MethodType, ModuleType
from typing import Any

_MOST = 256  # a look is taken once an epoch, and must not be felt
_MOST_ELEMENTS = 16  # of a list or dictionary: transforms, not samples
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OPAQUE = (type, ModuleType, FunctionType, Logger)


def walk(root: Any, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Everything reached from `root` by attribute, or as an element of a small container, with the way to it."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("", root, depth)]
    while waiting and len(seen) < _MOST:
        path, value, left = waiting.pop(0)
        if path:
            yield path, value
        if left == 0 or id(value) in seen or isinstance(value, (*_PLAIN, *_OPAQUE)):
            continue
        seen.add(id(value))
        waiting.extend((path + step, child, left - 1) for step, child in _children(value))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, MethodType):
        yield ".__self__", value.__self__
        return
    if isinstance(value, (list, tuple)):
        for position, element in enumerate(value[:_MOST_ELEMENTS]):
            yield f"[{position}]", element
    elif type(value) is dict:
        for key in list(value)[:_MOST_ELEMENTS]:
            yield f"[{key!r}]", value[key]
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict:
        for name, attribute in list(attributes.items()):
            yield f".{name}", attribute


def look(root: Any, depth: int = 4) -> dict[str, Any]:
    """A portrait to compare with a later one: plain values as they are, everything else by identity and size.
    Contents of arrays are not looked at."""
    return {path: _token(value) for path, value in walk(root, depth)}


def _token(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (list, tuple, dict, set, frozenset, bytearray)):
        return id(value), len(value)
    return id(value), getattr(value, "_version", 0)  # tensors count their changes in place


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The attribute that changed, as a sentence names it; "" where nothing did."""
    if before == now:
        return ""
    for path in (*now, *before):
        if before.get(path, before) != now.get(path, now):
            return path.lstrip(".")
    return ""
