"""Measures microseconds per image: decoded by Pillow, decoded and stored in the cache, and read from the cache.

Each case is measured alone and in a pipeline of random-resized-crop, flip and normalise. The cases take turns in one
process, on one thread. Writes benchmarks/results/decode_cache.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile

from intervals import paired_interval
from page import machine, write_page
from slipstream.data.images import decode_cache
from slipstream.data.images.cache_budget import CacheBudget
from slipstream.data.images.pillow_cache import PillowDecoding
from slipstream.data.images.pixel_store import PixelStore
from slipstream.seams.patching import Patches
from slipstream.testing.photographs import make_photographs

PHOTOGRAPHS = Path(__file__).parent.parent.parent / "shared" / "data" / "photos"
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
OPEN, DECODE, FIRST, FOUND = "opened only", "decoded", "decoded and kept (first epoch)", "found (later epochs)"
CROP, CROP_FIRST, CROP_FOUND = "pipeline, decoded", "pipeline, first epoch", "pipeline, later epochs"


def fail(seam: str, fault: BaseException) -> None:
    raise RuntimeError(seam) from fault


@contextlib.contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Uses the cache in `folder` as a new process does, which has not verified any image yet."""
    patches = Patches(fail, lambda: False)
    allowance = CacheBudget(folder, 1 << 34, lambda why: sys.exit(why))
    PillowDecoding(decode_cache.DecodeCache(PixelStore(folder), allowance, lambda why: sys.exit(why))).install(
        patches, ImageFile
    )
    try:
        yield
    finally:
        patches.close()


def decode(path: Path) -> None:
    Image.open(path).load()


def pipeline(path: Path) -> Any:
    """The operations of torchvision's transforms, written by hand."""
    image: Any = Image.open(path).convert("RGB")
    width, height = image.size
    area, ratio = width * height * random.uniform(0.08, 1.0), random.uniform(3 / 4, 4 / 3)
    wide, high = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
    left, top = random.randint(0, width - wide), random.randint(0, height - high)
    image = image.crop((left, top, left + wide, top + high)).resize((224, 224), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255).sub_(MEAN).div_(DEVIATION)


def us_each(paths: list[Path], work: Callable[[Path], Any]) -> float:
    start = time.perf_counter()
    for path in paths:
        work(path)
    return (time.perf_counter() - start) / len(paths) * 1e6


def one_round(paths: list[Path], folder: Path, number: int) -> dict[str, float]:
    times = {OPEN: us_each(paths, Image.open), DECODE: us_each(paths, decode)}
    with kept_in(folder):
        times[FIRST] = us_each(paths, decode)
        us_each(paths, decode)  # A process verifies each image once, in the first epoch that finds it in the cache.
        times[FOUND] = us_each(paths, decode)
    shutil.rmtree(folder)
    random.seed(number)
    times[CROP] = us_each(paths, pipeline)
    with kept_in(folder):
        random.seed(number)
        times[CROP_FIRST] = us_each(paths, pipeline)
    with kept_in(folder):  # This is like a worker that is started again for each epoch and verifies what it reads.
        random.seed(number)
        times[CROP_FOUND] = us_each(paths, pipeline)
    shutil.rmtree(folder)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--photographs", type=Path, default=PHOTOGRAPHS)
    options = parser.parse_args()
    head = machine()
    torch.set_num_threads(1)
    decode_cache.SETTLED_NS = 0  # Synthetic photographs are new files. The cache would skip new files.
    with tempfile.TemporaryDirectory() as place:
        found = sorted(options.photographs.glob("*.JPEG"))[: options.images]
        paths = found or make_photographs(Path(place) / "photographs", options.images)
        one_round(paths, Path(place) / "cache", 0)
        rounds = [one_round(paths, Path(place) / "cache", number) for number in range(options.rounds)]
    size_kb = sum(os.path.getsize(path) for path in paths) / len(paths) / 1e3
    lines = "\n".join(f"| {name} | {median(one[name] for one in rounds):,.0f} |" for name in rounds[0])
    alone = paired_interval([one[DECODE] / one[FOUND] for one in rounds])
    whole = paired_interval([one[CROP] / one[CROP_FOUND] for one in rounds])
    first = paired_interval([one[CROP_FIRST] / one[CROP] for one in rounds])
    write_page(
        "decode_cache",
        f"# Decoded images kept\n\n{head}\n\n{len(paths)} {'real' if found else 'made'} photographs of "
        f"{size_kb:.0f} kB; median of {options.rounds} rounds, one thread.\n\n"
        f"| | µs an image |\n|---|---:|\n{lines}\n\n"
        f"Reading an image from the cache is {alone.middle:.1f} times as fast as decoding it ({alone.low:.1f} to "
        f"{alone.high:.1f}). The pipeline is {whole.middle:.2f} times as fast ({whole.low:.2f} to {whole.high:.2f}); "
        f"in the first epoch it takes {first.middle:.2f} times as long ({first.low:.2f} to {first.high:.2f}).\n",
    )


if __name__ == "__main__":
    main()
