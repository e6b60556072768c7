"""torchdata.nodes: batches of indices. One call in a thread makes a whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import RandomSampler, default_collate
from torchdata.nodes import Batcher, Loader, ParallelMapper, Prefetcher, SamplerWrapper

from peers.work import BATCH, CORES, Job, Photographs

DISTRIBUTION = "torchdata"


def batches(job: Job) -> Iterator[Any]:
    dataset = Photographs(job.photographs)

    def fetch(indices: list[int]) -> Any:
        return default_collate([dataset[index] for index in indices])

    node: Any = Batcher(SamplerWrapper(RandomSampler(dataset)), BATCH, drop_last=True)
    node = ParallelMapper(node, fetch, num_workers=CORES, method="thread")
    loader = Loader(Prefetcher(node, prefetch_factor=CORES))
    while True:
        yield from loader
