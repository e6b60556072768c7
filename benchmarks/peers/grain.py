"""grain: a map dataset in batches. Threads prefetch, and each thread makes a whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain
from torch.utils.data import default_collate

from peers.work import BATCH, CORES, Job, Photographs

DISTRIBUTION = "grain"


def batches(job: Job) -> Iterator[Any]:
    dataset = grain.MapDataset.source(Photographs(job.photographs)).shuffle(seed=0).repeat()
    dataset = dataset.batch(BATCH, drop_remainder=True, batch_fn=default_collate)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=2 * CORES)))
