"""All trials get the same random numbers, however the script seeds. The control with another seed gets different
ones."""

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


def run(script: Any, seed: int = 0, shift: int = 0) -> list[Any]:
    def fail(seam: str, fault: BaseException) -> None:
        raise AssertionError(seam) from fault

    patches = Patches(fail, lambda: False)
    import_hooks = ImportHooks()
    Seeding(seed, shift, patches).install(import_hooks)
    try:
        drawn: list[Any] = script()
        return drawn
    finally:
        patches.close()
        import_hooks.close()
        assert not patches.leftovers


@pytest.mark.parametrize("script", [unseeded, from_the_system])
def test_unseeded_random_numbers_are_the_same_in_all_trials(script: Any) -> None:
    first = run(script)
    random.random(), np.random.rand(), torch.rand(1)
    assert run(script) == first
    assert all(a != b for a, b in zip(run(script, seed=1), first, strict=True))


def test_seeds_of_the_script_are_kept_except_in_the_seed_control() -> None:
    bare = seeded()
    assert run(seeded, seed=1) == bare
    shifted = run(seeded, shift=SHIFT)
    assert all(a != b for a, b in zip(shifted, bare, strict=True))
    assert run(seeded, shift=SHIFT) == shifted


def test_two_unseeded_generators_differ() -> None:
    def script() -> list[Any]:
        return [float(np.random.default_rng().random()), float(np.random.default_rng().random())]

    first, second = run(script)
    assert first != second
