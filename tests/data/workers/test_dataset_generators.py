from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.data.threads.rng_streams import RngStream
from slipstream.data.workers.dataset_generators import generators_of
from slipstream.seams.rng_state import RngState

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
    lambda: np.random.randn(),  # every second call returns a number that the call before has stored
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
    before = RngState(generators_of(HOLDER))
    assert not before.has_moved()
    first = draw()
    assert before.has_moved()
    before.restore()
    assert not before.has_moved() and draw() == first


def test_a_data_threads_own_stream_is_covered() -> None:
    stream = RngStream()
    stream.seed(3, 0)
    with stream.drawn_from():
        before = RngState(generators_of(HOLDER))
        torch.rand(1)
        assert before.has_moved()
        before.restore()
    assert not before.has_moved()


def test_reading_states_draws_nothing() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(1)
    torch.manual_seed(0)
    RngState(generators_of(HOLDER))
    assert torch.rand(1) == wanted
