"""Fixtures for loaders that a script builds and reads, with and without a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from slipstream.records import Choice, Recipe, Setting
from slipstream.seams.patching import Patches
from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.techniques._core.context import ApplyContext


class Numbers(Dataset[Any]):
    """Sample i is i. With `noise` it also holds a random number of the process that builds it."""

    def __init__(self, num_samples: int = 24, noise: bool = False) -> None:
        self.num_samples = num_samples
        self.noise = noise
        self.offset = 0

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        value = torch.tensor([float(index + self.offset), 0.0])
        if self.noise:
            value[1] = torch.rand(())
        return value


@contextmanager
def _applied(faults: list[str], **choices: Setting) -> Iterator[ApplyContext]:
    places = {name: vars(_MultiProcessingDataLoaderIter)[name] for name in ("_reset", "_next_data")}
    patches = Patches(lambda seam, fault: faults.append(f"{seam}: {fault!r}"), torch.compiler.is_compiling)
    try:
        yield apply_recipe(
            Recipe(tuple(Choice(name, setting) for name, setting in choices.items())), patches, patches.complain
        )
    finally:
        patches.close()
    assert not patches.leftovers
    assert all(vars(_MultiProcessingDataLoaderIter)[name] is value for name, value in places.items())


@pytest.fixture
def applied() -> Iterator[Callable[..., Any]]:
    """`with applied(workers=2) as context:` applies a recipe. An error in our code fails the test."""
    faults: list[str] = []
    yield lambda **choices: _applied(faults, **choices)
    assert not faults


@pytest.fixture
def message_of() -> Callable[..., str]:
    """The message that a call raised. `pytest.raises` would keep the traceback, and with it the iterator and its
    workers."""

    def catch(call: Callable[[], Any], kind: type[Exception]) -> str:
        try:
            call()
        except kind as fault:
            return str(fault)
        raise AssertionError(f"no {kind.__name__} was raised")

    return catch


@pytest.fixture
def numbers() -> type[Numbers]:
    return Numbers
