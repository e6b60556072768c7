"""Draws from generators that the tests of datasets do not cover are detected and undone."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.seams import rng_state
from slipstream.seams.rng_state import RngState, default_generators


@pytest.mark.parametrize(
    "generator",
    [
        np.random.Generator(np.random.MT19937(1)),
        np.random.Generator(np.random.Philox(1)),
        np.random.RandomState(np.random.PCG64(1)),  # whose legacy state does not exist
    ],
    ids=["MT19937", "Philox", "RandomState of PCG64"],
)
def test_draw_from_a_generator_with_another_algorithm_is_undone(generator: Any) -> None:
    before = RngState([generator, generator])
    first = generator.normal()
    assert before.has_moved() and before.moved_library() == "numpy.random"
    before.restore()
    assert not before.has_moved() and generator.normal() == first


def test_generator_of_a_device_is_saved_through_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = torch.Generator()
    module = types.SimpleNamespace(get_rng_state=inner.get_state, set_rng_state=inner.set_state)
    monkeypatch.setattr(rng_state.torch, "get_device_module", lambda device: module)
    before = RngState(default_generators("cuda"))
    assert not before.has_moved()
    first = torch.rand(1, generator=inner)
    assert before.has_moved() and before.moved_library() == "torch"
    before.restore()
    assert not before.has_moved() and torch.rand(1, generator=inner) == first
