"""Detects on real loaders whether building a batch draws random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from slipstream.records import Ending, Met
from slipstream.seams.rng_use import RngUse
from slipstream.trial.lifecycle import ScriptRun, TrialSettings


class Jitter:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.rng.normal()


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, draw: Callable[[torch.Tensor], Any]) -> None:
        self.transforms = [draw]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(self.transforms[0](torch.tensor(float(index)))))


@pytest.mark.parametrize(
    ("draw", "draws"),
    [
        (lambda x: x.square(), False),
        (lambda x: x + random.random(), True),
        (lambda x: x + np.random.rand(), True),
        (lambda x: x + torch.rand(()), True),
        (Jitter(), True),
    ],
    ids=["nothing", "random", "numpy", "torch", "a generator of its own"],
)
def test_loader_facts_say_whether_batches_draw_random_numbers(draw: Callable[[torch.Tensor], Any], draws: bool) -> None:
    """At the first batch of every epoch the sampler draws the order. This must not count as a draw of the samples."""
    run = ScriptRun(TrialSettings(mode="watch"))
    run.start()
    try:
        loader = DataLoader(Numbers(draw), batch_size=16, shuffle=True)
        for _ in range(3):
            random.random(), np.random.rand(), torch.rand(())
            list(loader)
    finally:
        run.leave(Ending("finished", 0, 0.0))
    met = [one.loader for _, one in run.messages if isinstance(one, Met) and one.loader is not None]
    assert met[0].draws is None and met[-1].draws is draws


def test_watching_does_not_change_the_generators_and_ends() -> None:
    drawing = RngUse(Numbers(Jitter()))
    before = torch.get_rng_state()
    for _ in range(3):
        assert not drawing.is_over
        drawing.begin()
        assert drawing.end() is False
    assert drawing.is_over and not drawing.has_drawn
    assert torch.equal(torch.get_rng_state(), before)
