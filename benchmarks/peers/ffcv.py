"""FFCV: writes the photographs to its own file once, as JPEG that is encoded again or as raw pixels.

Compiled code decodes, crops and normalises in two threads. OpenCV resizes, so the pixels differ from Pillow's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from peers.work import BATCH, CHANNEL_MEANS, CHANNEL_STDS, CORES, SIDE, Job, Photographs

DISTRIBUTION = "ffcv"


class _Whole:
    """The images without changes, for the writer of FFCV."""

    def __init__(self, photographs: Photographs) -> None:
        self.photographs = photographs

    def __len__(self) -> int:
        return len(self.photographs)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.open(self.photographs.paths[index]).convert("RGB"), self.photographs.labels[index]


def batches(job: Job) -> Iterator[Any]:
    path = str(job.folder / "photographs.beton")
    fields = {"image": RGBImageField(write_mode=job.setting["mode"]), "label": IntField()}
    DatasetWriter(path, fields, num_workers=CORES).from_indexed_dataset(_Whole(Photographs(job.photographs)))
    mean, std = (255 * np.array(values) for values in (CHANNEL_MEANS, CHANNEL_STDS))
    image = [
        RandomResizedCropRGBImageDecoder((SIDE, SIDE)),
        RandomHorizontalFlip(),
        NormalizeImage(mean, std, np.float32),
        ToTensor(),
        ToTorchImage(convert_back_int16=False),
    ]
    loader = Loader(
        path,
        batch_size=BATCH,
        num_workers=CORES,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    while True:
        yield from loader
