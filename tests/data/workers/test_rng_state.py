from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.data.threads.rng_streams import RngStream
from slipstream.data.workers.rng_state import GeneratorStates

OURS = np.random.default_rng(1)


class Holder:
    def __init__(self) -> None:
        hidden = np.random.RandomState(4)
        self.torchs = torch.Generator()
        self.inner = {"old": np.random.RandomState(3), "pythons": random.Random(2)}
        self.enclosed: Callable[[], Any] = lambda: hidden.rand()


HOLDER = Holder()
DRAWS: list[Callable[[], Any]] = [
    lambda: torch.rand(1),
    lambda: np.random.rand(),
    lambda: np.random.randn(),  # every second one only takes what was laid by
    lambda: np.random.randn(),
    lambda: random.random(),
    lambda: OURS.random(),
    lambda: torch.rand(1, generator=HOLDER.torchs),
    lambda: HOLDER.inner["old"].rand(),
    lambda: HOLDER.inner["pythons"].random(),
    lambda: HOLDER.enclosed(),
]


@pytest.mark.parametrize("draw", DRAWS, ids=range(len(DRAWS)))
def test_every_draw_is_detected_and_undone(draw: Callable[[], Any]) -> None:
    draws = GeneratorStates(HOLDER)
    before = draws.states()
    assert not draws.have_moved(before)
    first = draw()
    assert draws.have_moved(before)
    draws.restore(before)
    assert not draws.have_moved(before) and draw() == first


def test_a_data_threads_own_stream_is_covered() -> None:
    stream = RngStream()
    stream.seed(3, 0)
    with stream.drawn_from():
        draws = GeneratorStates(HOLDER)
        before = draws.states()
        torch.rand(1)
        assert draws.have_moved(before)
        draws.restore(before)
    assert not draws.have_moved(before)


def test_reading_states_draws_nothing() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(1)
    torch.manual_seed(0)
    GeneratorStates(HOLDER).states()
    assert torch.rand(1) == wanted
