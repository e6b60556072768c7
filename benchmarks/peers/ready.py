"""Only the transfer of batches: the samples are float tensors that are already in memory.

Compares DataLoader with two workers, slipstream's recipe, and the minimum: copying the floats into a reused batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from peers import ours
from peers.work import BATCH, CORES, SIDE, Job

NUM_TENSORS = 256  # 154 MB: larger than the caches of the processor
NUM_BATCHES = 128  # per epoch


class Ready(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self) -> None:
        self.tensors = torch.randn(NUM_TENSORS, 3, SIDE, SIDE)

    def __len__(self) -> int:
        return NUM_BATCHES * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.tensors[index % NUM_TENSORS], index % 1000


def batches(job: Job) -> Iterator[Any]:
    return {"dataloader": _plain, "recipe": _recipe, "copy": _copy}[job.setting["by"]](job)


def _plain(job: Job) -> Iterator[Any]:
    loader = DataLoader(
        Ready(), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=CORES, persistent_workers=True
    )
    while True:
        yield from loader


def _recipe(job: Job) -> Iterator[Any]:
    ours.put_in_place(job)
    yield from ours.endless(Ready())


def _copy(job: Job) -> Iterator[Any]:
    tensors, batch = Ready().tensors, torch.empty(BATCH, 3, SIDE, SIDE)
    labels = torch.zeros(BATCH, dtype=torch.int64)
    while True:
        torch.stack([tensors[index] for index in random.sample(range(NUM_TENSORS), BATCH)], out=batch)
        yield batch, labels
