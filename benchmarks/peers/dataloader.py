"""torch's DataLoader without changes, with a given number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from peers.work import BATCH, Job, Photographs


def batches(job: Job) -> Iterator[Any]:
    workers = job.setting["num_workers"]
    dataset = Photographs(job.photographs)
    loader = DataLoader(
        dataset, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )
    while True:
        yield from loader
