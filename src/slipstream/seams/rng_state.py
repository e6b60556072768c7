"""Saves, compares and restores the states of random generators: Python's, NumPy's, and torch's for the CPU and a
device. No random number is drawn."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any

import torch


class RngState:
    """The states of some generators at one moment."""

    def __init__(self, generators: Iterable[Any]) -> None:
        unique = {id(generator): generator for generator in generators}
        self._states = [(generator, _read(generator)) for generator in unique.values()]

    def has_moved(self) -> bool:
        """Whether the state of a generator has changed since this object was created."""
        return any(not _is_equal(_read(generator), state) for generator, state in self._states)

    def moved_library(self) -> str:
        """Returns the library of the first generator whose state has changed, or "" if none has."""
        moved = (generator for generator, state in self._states if not _is_equal(_read(generator), state))
        return next(map(_library, moved), "")

    def restore(self) -> None:
        for generator, state in self._states:
            _write(generator, state)


class _DeviceGenerator:
    """The generator of a device. Functions of the device's module, such as torch.cuda, read and set its state."""

    def __init__(self, module: Any) -> None:
        self.get_state = module.get_rng_state
        self.set_state = module.set_rng_state


def torch_generators(device: str) -> list[Any]:
    """Returns the generators that torch draws from by default, on the CPU and on the device (cpu, cuda, ...)."""
    on_device = [] if device in ("cpu", "meta") else [_DeviceGenerator(torch.get_device_module(device))]
    return [torch.default_generator, *on_device]


def default_generators(device: str = "cpu") -> list[Any]:
    """Returns the generators that the functions of torch, Python and NumPy use. NumPy's is included if NumPy is
    imported."""
    python: Any = random
    numpy: Any = sys.modules.get("numpy.random")
    return [*torch_generators(device), python._inst, *([numpy.mtrand._rand] if numpy is not None else [])]


def is_generator(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy.random")
    kinds = (torch.Generator, random.Random, *((numpy.Generator, numpy.RandomState) if numpy is not None else ()))
    return issubclass(type(value), kinds)  # `isinstance` would raise an error for a weak proxy of a deleted object.


def _library(generator: Any) -> str:
    if isinstance(generator, random.Random):
        return "random"
    return "torch" if isinstance(generator, (torch.Generator, _DeviceGenerator)) else "numpy.random"


def _read(generator: Any) -> Any:
    if isinstance(generator, (torch.Generator, _DeviceGenerator)):
        # The state is not kept as a tensor, because a tensor would count as memory of the script.
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def _write(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif isinstance(state, bytes):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    else:
        generator.set_state(state)


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    if hasattr(one, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other)
