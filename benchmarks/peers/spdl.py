"""SPDL: a pipeline of threads.

With Pillow, it calls the functions of the plain script for one batch at a time. With its own decoder, FFmpeg decodes,
crops, scales and flips, which gives other pixels.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from spdl.pipeline import PipelineBuilder
from torch.utils.data import default_collate

from peers.work import BATCH, CORES, MEAN, SIDE, STD, Job, Photographs, draw_crop

DISTRIBUTION = "spdl-io"


def batches(job: Job) -> Iterator[Any]:
    dataset = Photographs(job.photographs)

    def order() -> Iterator[int]:
        while True:
            yield from random.sample(range(len(dataset)), len(dataset))

    def by_pillow(indices: list[int]) -> Any:
        return default_collate([dataset[index] for index in indices])

    def by_ffmpeg(indices: list[int]) -> Any:
        images = torch.stack([_decode(dataset.paths[index]) for index in indices]).permute(0, 3, 1, 2)
        return images.float().div_(255).sub_(MEAN).div_(STD), torch.tensor([dataset.labels[i] for i in indices])

    fetch = by_pillow if job.setting["decoder"] == "pillow" else by_ffmpeg
    builder = PipelineBuilder().add_source(order()).aggregate(BATCH, drop_last=True).pipe(fetch, concurrency=CORES)
    pipeline = builder.add_sink(2 * CORES).build(num_threads=CORES)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator(timeout=60)


def _decode(path: Path) -> torch.Tensor:
    import spdl.io

    packets = spdl.io.demux_image(str(path))
    left, top, width, height = draw_crop(packets.codec.width, packets.codec.height)
    flip = ",hflip" if random.random() < 0.5 else ""
    filters = f"crop={width}:{height}:{left}:{top},scale={SIDE}:{SIDE}:flags=bilinear{flip},format=pix_fmts=rgb24"
    return spdl.io.to_torch(spdl.io.convert_frames(spdl.io.decode_packets(packets, filter_desc=filters)))
