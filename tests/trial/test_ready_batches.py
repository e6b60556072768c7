"""Real loaders whose workers finish batches ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from slipstream.trial.ready_batches import ReadyBatches, count


class Slow(Dataset[torch.Tensor]):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.zeros(1)


def _ahead(seconds: float, num_workers: int) -> Iterator[Any]:
    """An iterator after the first steps, which were slow: its workers have finished all batches that they may."""
    loader = DataLoader(Slow(seconds), 1, num_workers=num_workers, prefetch_factor=4 if num_workers else None)
    iterator = iter(loader)
    next(iterator)
    if num_workers:
        _wait_until_full(iterator)
    return iterator


def _wait_until_full(iterator: Any) -> None:
    end_s = time.monotonic() + 60.0
    while count(iterator)[0] < 4 * iterator._num_workers:
        assert time.monotonic() < end_s, "the workers finish no batches"
        time.sleep(0.01)


def test_steps_that_are_faster_than_the_workers_use_the_batches_up() -> None:
    iterator, ready = _ahead(0.05, num_workers=2), ReadyBatches(5)
    answers = []
    for _ in range(30):
        next(iterator)
        ready.see(iterator)
        answers.append(ready.is_used_up())
        if answers[-1]:
            break
    assert len(answers) >= 4 and answers[-1] and not any(answers[:-1])


def test_steps_that_are_slower_than_the_workers_do_not_wait() -> None:
    iterator, ready = _ahead(0.001, num_workers=2), ReadyBatches(5)
    answers = []
    for _ in range(10):
        next(iterator)
        _wait_until_full(iterator)
        ready.see(iterator)
        answers.append(ready.is_used_up())
    assert answers.index(True) == 4, "the number of ready batches does not fall"


def test_a_loader_without_workers_has_none() -> None:
    iterator, ready = _ahead(0.0, num_workers=0), ReadyBatches(5)
    ready.see(iterator)
    assert ready.is_used_up() and ReadyBatches(5).is_used_up()


def test_batches_that_the_warm_up_has_used_up_are_not_waited_for() -> None:
    iterator, ready = _ahead(0.05, num_workers=2), ReadyBatches(8)
    ready.see(iterator)
    assert ready.is_used_up(), "two workers build 4 batches ahead each"
