"""Whether an iterable dataset shares its data among workers. One that does not would repeat all of it in each.
Conservative: what cannot be seen to ask which worker it runs in does not share."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

_QUESTION = get_worker_info.__name__
_MOST = 64  # functions looked at


def does_shard(dataset: Any) -> bool:
    if _asks(dataset):
        return True
    inner = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
    return isinstance(inner, IterableDataset) and does_shard(inner)  # a wrapper passes on what its dataset gives


def _asks(dataset: Any) -> bool:
    """Whether `__iter__`, or what it calls of its own class and module, asks for the worker it runs in."""
    seen: set[CodeType] = set()
    waiting = list(_functions(type(dataset), "__iter__"))
    while waiting and len(seen) < _MOST:
        function = waiting.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for name in _names(function.__code__):
            if name == _QUESTION or function.__globals__.get(name) is get_worker_info:
                return True
            waiting.extend(_functions(type(dataset), name))
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and not called.__module__.startswith("torch."):
                waiting.append(called)
    return False


def _functions(owner: type, name: str) -> Iterator[FunctionType]:
    found = getattr(owner, name, None)
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__wrapped__", found)
    if isinstance(found, FunctionType):
        yield found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
