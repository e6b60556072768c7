"""WebDataset: the JPEG files are in tar shards. Two workers decode them with Pillow and make batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import webdataset as wds

from peers.work import BATCH, CORES, Job, Photographs, augment

DISTRIBUTION = "webdataset"
NUM_SHARDS = 8


def batches(job: Job) -> Iterator[Any]:
    dataset = Photographs(job.photographs)
    shards = [str(job.folder / f"{number}.tar") for number in range(NUM_SHARDS)]
    for number, shard in enumerate(shards):
        with wds.TarWriter(shard) as writer:
            for index in range(number, len(dataset), NUM_SHARDS):
                image = dataset.paths[index].read_bytes()
                writer.write({"__key__": f"{index:06d}", "jpg": image, "cls": dataset.labels[index]})
    pipeline = wds.WebDataset(shards, shardshuffle=NUM_SHARDS).shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    pipeline = pipeline.map_tuple(augment, int).batched(BATCH, partial=False)
    loader = wds.WebLoader(pipeline, batch_size=None, num_workers=CORES, persistent_workers=True)
    while True:
        yield from loader
