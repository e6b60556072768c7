"""Finds the random generators that a dataset can draw from: the default generators of torch, NumPy and Python,
generators that are attributes of the dataset, and generators in the modules and enclosed variables of its code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from slipstream.data.threads.rng_streams import own_generators
from slipstream.data.workers.dataset_fingerprint import walk
from slipstream.seams.rng_state import is_generator


def generators_of(dataset: Any) -> list[Any]:
    """Returns the generators that the dataset can draw from. A generator that the dataset creates later is not
    included."""
    return [*own_generators(), *_reachable(dataset)]


def _reachable(dataset: Any) -> Iterator[Any]:
    modules = set()
    for _, value in (("", dataset), *walk(dataset)):
        if is_generator(value):
            yield value
        function = value.__func__ if isinstance(value, MethodType) else value
        if isinstance(function, FunctionType):
            modules.add(function.__module__)
            yield from (one for one in _enclosed(function) if is_generator(one))
        else:
            modules.update(kind.__module__ for kind in type(value).__mro__)
    for name in modules:
        module = sys.modules.get(name or "")
        yield from (one for one in list(vars(module).values()) if is_generator(one)) if module else ()


def _enclosed(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the cell is still empty
            continue
