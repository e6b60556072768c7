"""The measured cost of starting an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from slipstream.seams.patching import Patches
from slipstream.trial.epoch_starts import EpochStarts


class SlowToOpen(Dataset[torch.Tensor]):
    """The first sample of every epoch takes long, as it does when workers start."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.05 if index == 0 else 0.001)
        return torch.tensor(index)


@pytest.fixture
def patches() -> Iterator[Patches]:
    patches = Patches(lambda seam, fault: pytest.fail(f"{seam}: {fault}"), lambda: False)
    yield patches
    patches.close()


@pytest.fixture
def starts(patches: Patches) -> EpochStarts:
    starts = EpochStarts()
    starts.install(patches)
    return starts


def test_an_epoch_start_is_the_first_wait_minus_a_usual_wait(starts: EpochStarts) -> None:
    loader = DataLoader(SlowToOpen(), batch_size=1)
    for _ in range(3):
        for _ in loader:
            starts.confirm()
    assert 0.045 < starts.estimate_s() < 0.5
    assert starts.total_ns / 1e9 == pytest.approx(2 * starts.estimate_s()), "the first start includes one-off work"


def test_the_estimate_uses_the_first_epoch_until_there_is_a_second(starts: EpochStarts) -> None:
    for _ in DataLoader(SlowToOpen(), batch_size=1):
        starts.confirm()
    assert starts.total_ns == 0 and starts.estimate_s() > 0.045


def test_loaders_without_updates_have_no_starts(starts: EpochStarts) -> None:
    training, validation = iter(DataLoader(SlowToOpen())), DataLoader(SlowToOpen())
    next(training)
    starts.confirm()
    for _ in validation:
        pass
    next(training)
    starts.confirm()
    assert starts.total_ns == 0


def test_one_off_work_is_no_part_of_a_start(patches: Patches) -> None:
    spent_ns = 0

    class Filled(DataLoader[torch.Tensor]):
        def _get_iterator(self) -> Any:
            nonlocal spent_ns
            time.sleep(0.3)
            spent_ns += 300_000_000
            return super()._get_iterator()

    starts = EpochStarts(lambda: spent_ns)
    starts.install(patches)
    next(iter(Filled(SlowToOpen(), batch_size=1)))
    starts.confirm()
    assert 0.045 < starts.estimate_s() < 0.25
