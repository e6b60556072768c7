"""A fixture that applies a recipe in this process within a `with` block. Tests compute with one thread: these trainings
are too small to be split, and threads that wait for each other spin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from slipstream.records import Choice, Recipe, Setting
from slipstream.seams.patching import Patches
from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.techniques._core.context import ApplyContext


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def applied() -> Callable[..., Any]:
    return _applied


@contextlib.contextmanager
def _applied(*choices: str | tuple[str, Setting], is_proof: bool = False) -> Iterator[ApplyContext]:
    faults: list[BaseException] = []
    recipe = Recipe(tuple(Choice(one) if isinstance(one, str) else Choice(*one) for one in choices))
    patches = Patches(lambda name, fault: faults.append(fault), torch.compiler.is_compiling)
    try:
        yield apply_recipe(recipe, patches, lambda name, fault: faults.append(fault), is_proof)
    finally:
        patches.close()
    assert not faults and not patches.leftovers
