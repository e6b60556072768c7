"""The work that all contestants do: read, decode, random-resized-crop, flip, convert to float, normalise.

The functions are written as in a plain script. Every contestant that gives the same pixels calls them.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

SIDE, BATCH, CORES = 224, 32, 2
CHANNEL_MEANS, CHANNEL_STDS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN = torch.tensor(CHANNEL_MEANS).view(3, 1, 1)
STD = torch.tensor(CHANNEL_STDS).view(3, 1, 1)


@dataclass(frozen=True)
class Job:
    photographs: Path
    folder: Path  # an empty folder for the converted data and caches of this contestant
    setting: dict[str, Any]


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """A folder with one folder for each class."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        classes = sorted({path.parent.name for path in self.paths})
        self.labels = [classes.index(path.parent.name) for path in self.paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(self.paths[index], "rb") as file:
            image = Image.open(file).convert("RGB")
        return augment(image), self.labels[index]


def augment(image: Image.Image) -> torch.Tensor:
    left, top, width, height = draw_crop(*image.size)
    image = image.crop((left, top, left + width, top + height)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    return pixels.float().div_(255).sub_(MEAN).div_(STD)


def draw_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, width and height: 8% to 100% of the area, 3:4 to 4:3, as is usual for ImageNet."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side
