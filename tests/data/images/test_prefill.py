"""Samples of the next epoch are read ahead in other processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from slipstream.data.images import prefill


class Traces(Dataset[Any]):
    """Writes a file for each sample. The fourth sample raises."""

    def __init__(self, folder: Path, num_samples: int = 40) -> None:
        self.folder, self.num_samples = folder, num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise ValueError("a broken image")
        (self.folder / f"{index}").write_text(str(os.getpid()))
        return index


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": SubsetRandomSampler(range(5, 25))}, {}])
def test_upcoming_indices_are_those_of_the_next_epoch(options: Any, tmp_path: Path) -> None:
    for generator in (None, torch.Generator()):
        loader = DataLoader(Traces(tmp_path, num_samples=3), batch_size=2, generator=generator, **options)
        if "sampler" in options:
            loader.dataset.num_samples = 40  # type: ignore[attr-defined]
        torch.manual_seed(1)
        before = torch.get_rng_state()
        upcoming = list(prefill.upcoming_indices(loader))
        assert torch.equal(torch.get_rng_state(), before)
        assert upcoming == [int(index) for batch in _read(loader) for index in batch]


def _read(loader: Any) -> list[Any]:
    loader.dataset.__class__ = type("Plain", (Traces,), {"__getitem__": lambda self, index: index})
    return list(loader)


def fill(loader: Any, is_over: Any = lambda num_made: False, **how: Any) -> float:
    return prefill.fill(loader, lambda: loader.dataset.__getitem__, is_over, **how)


def test_every_sample_is_read_once_in_another_process(tmp_path: Path) -> None:
    loader = DataLoader(Traces(tmp_path), batch_size=4, shuffle=True)
    assert fill(loader, num_processes=2) == 1.0
    makers = {int(path.read_text()) for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 39 and len(makers) == 2 and os.getpid() not in makers


def test_filling_ends_when_is_over_returns_true(tmp_path: Path) -> None:
    loader = DataLoader(Traces(tmp_path, num_samples=1000))
    assert fill(loader, lambda num_made: num_made >= 16, num_processes=1) == 16 / 1000


def test_filling_ends_at_the_deadline(tmp_path: Path) -> None:
    loader = DataLoader(Traces(tmp_path, num_samples=1000))
    assert fill(loader, deadline_s=0.0, num_processes=1) <= 1 / 1000
