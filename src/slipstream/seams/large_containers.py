"""Finds containers with very many Python objects in the attributes of a dataset. Forked workers gradually copy the
memory of these objects, because reading an object writes its reference count. The attributes of wrapped datasets are
searched too. No method of the dataset is called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from slipstream.records import LargeContainer

FEWEST = 50_000
_MAX_DEPTH = 3
_NUM_INSPECTED = 64  # Number of elements that are inspected. The others are assumed to be similar.
_SHARED = (bool, type(None))  # Types whose few objects are shared by all elements


def find_container(dataset: Any) -> LargeContainer | None:
    """Returns the container with the most objects, or None."""
    found = [_container(name, value) for name, value in _attributes(dataset, "", _MAX_DEPTH)]
    return max((one for one in found if one is not None), key=lambda one: one.num_objects, default=None)


def _attributes(thing: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    attributes = getattr(thing, "__dict__", None)
    if type(attributes) is not dict:
        return
    for name, value in list(attributes.items()):
        yield path + name, value
        if depth > 1 and type(value).__module__ != "builtins":
            yield from _attributes(value, f"{path}{name}.", depth - 1)


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _container(name: str, value: Any) -> LargeContainer | None:
    if type(value) in (list, tuple, set, dict):
        elements: Any = value.values() if type(value) is dict else value
    elif _is_array(value) and value.dtype.hasobject and value.ndim == 1:
        elements = value
    else:
        return None
    if len(elements) < FEWEST:
        return None
    sample = [one for one in islice(iter(elements), _NUM_INSPECTED) if not isinstance(one, _SHARED)]
    if len(sample) < _NUM_INSPECTED // 2:
        return None
    each = sum(sys.getsizeof(one) for one in sample) / len(sample) + 8
    return LargeContainer(
        name, type(value).__name__, type(sample[0]).__name__, len(elements), int(each * len(elements))
    )
