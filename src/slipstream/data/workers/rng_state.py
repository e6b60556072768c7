"""Reads and restores the states of the random generators that a dataset can draw from: the default generators of torch,
NumPy and Python, generators that are attributes of the dataset, and generators in the modules of its code. No random
number is drawn."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from slipstream.data.threads.rng_streams import own_generators
from slipstream.data.workers.dataset_fingerprint import walk

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
States = list[Any]


class GeneratorStates:
    """The generators of one dataset as it is now. A generator that the dataset creates later is not covered."""

    def __init__(self, dataset: Any) -> None:
        found = {id(generator): generator for generator in (*own_generators().values(), *_reachable(dataset))}
        self._generators = list(found.values())

    def __len__(self) -> int:
        return len(self._generators)

    def states(self) -> States:
        return [_read(generator) for generator in self._generators]

    def have_moved(self, before: States) -> bool:
        return any(not _is_equal(_read(one), state) for one, state in zip(self._generators, before, strict=True))

    def restore(self, states: States) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            _write(generator, state)


def _reachable(dataset: Any) -> Iterator[Any]:
    modules = set()
    for _, value in (("", dataset), *walk(dataset)):
        if isinstance(value, _KINDS):
            yield value
        function = value.__func__ if isinstance(value, MethodType) else value
        if isinstance(function, FunctionType):
            modules.add(function.__module__)
            yield from (one for one in _enclosed(function) if isinstance(one, _KINDS))
        else:
            modules.update(kind.__module__ for kind in type(value).__mro__)
    for name in modules:
        module = sys.modules.get(name or "")
        yield from (one for one in list(vars(module).values()) if isinstance(one, _KINDS)) if module else ()


def _enclosed(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _read(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return generator.getstate()


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple) and isinstance(one[0], str):  # NumPy's legacy generator: name, key, position, gauss
        return one[2:] == other[2:] and bool((one[1] == other[1]).all())
    return bool(one == other)


def _write(generator: Any, state: Any) -> None:
    if isinstance(generator, (torch.Generator, np.random.RandomState)):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = pickle.loads(state)
    else:
        generator.setstate(state)
