"""LitData: the JPEG files are packed into chunks once, and two workers stream them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import litdata
import torch
from PIL import Image

from peers.work import BATCH, CORES, Job, Photographs, augment

DISTRIBUTION = "litdata"


class _Stream(litdata.StreamingDataset):
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return augment(Image.open(io.BytesIO(sample["image"])).convert("RGB")), sample["label"]


def _to_sample(item: tuple[str, int]) -> dict[str, Any]:
    with open(item[0], "rb") as file:
        return {"image": file.read(), "label": item[1]}


def batches(job: Job) -> Iterator[Any]:
    dataset = Photographs(job.photographs)
    chunks, os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(job.folder / "chunks"), str(job.folder / "optimizing")
    items = list(zip(map(str, dataset.paths), dataset.labels, strict=True))
    litdata.optimize(  # forked, because spawning takes half a minute; this part is not timed
        _to_sample, items, chunks, chunk_bytes="64MB", num_workers=CORES, start_method="fork", verbose=False
    )
    stream = _Stream(chunks, shuffle=True, drop_last=True)
    loader = litdata.StreamingDataLoader(
        stream, batch_size=BATCH, num_workers=CORES, drop_last=True, persistent_workers=True
    )
    while True:
        yield from loader
