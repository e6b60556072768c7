"""Equal random numbers for every rider, whatever the script does about seeds; other ones for the seed twin."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.seams.import_hooks import ImportHooks
from slipstream.seams.patching import Patches
from slipstream.trial.seeding import SHIFT, Seeding


def unseeded() -> list[Any]:
    return [random.random(), float(np.random.rand()), float(torch.rand(1)), float(np.random.default_rng().random())]


def seeded() -> list[Any]:
    random.seed(1)
    np.random.seed(seed=2)
    torch.manual_seed(3)
    generator = torch.Generator()
    generator.manual_seed(4)
    assert isinstance(torch.default_generator, torch.Generator)
    own = [float(np.random.default_rng(5).random()), float(torch.rand(1, generator=generator))]
    return [*unseeded()[:3], *own]


def from_the_system() -> list[Any]:
    random.seed()
    np.random.seed()
    torch.seed()
    return unseeded()


def ride(script: Any, seed: int = 0, shift: int = 0) -> list[Any]:
    def fail(seam: str, fault: BaseException) -> None:
        raise AssertionError(seam) from fault

    patches = Patches(fail, lambda: False)
    arrivals = ImportHooks()
    Seeding(seed, shift, patches).install(arrivals)
    try:
        drawn: list[Any] = script()
        return drawn
    finally:
        patches.close()
        arrivals.close()
        assert not patches.leftovers


@pytest.mark.parametrize("script", [unseeded, from_the_system])
def test_what_the_script_leaves_open_is_the_same_for_all(script: Any) -> None:
    first = ride(script)
    random.random(), np.random.rand(), torch.rand(1)
    assert ride(script) == first
    assert all(a != b for a, b in zip(ride(script, seed=1), first, strict=True))


def test_the_scripts_own_seeds_are_its_own_but_for_the_seed_control() -> None:
    bare = seeded()
    assert ride(seeded, seed=1) == bare
    shifted = ride(seeded, shift=SHIFT)
    assert all(a != b for a, b in zip(shifted, bare, strict=True))
    assert ride(seeded, shift=SHIFT) == shifted


def test_two_unseeded_generators_are_two() -> None:
    def script() -> list[Any]:
        return [float(np.random.default_rng().random()), float(np.random.default_rng().random())]

    first, second = ride(script)
    assert first != second
