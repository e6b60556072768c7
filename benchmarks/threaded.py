"""Measures photographs per second with worker processes and with threads.

Compares the plain loader without workers, with two workers, and with threads. All cases take turns in one process. The
step leaves the CPU idle for five milliseconds. Writes benchmarks/results/threaded.md.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from intervals import paired_interval
from page import machine, write_page
from slipstream.data.threads.install import Threads
from slipstream.seams.patching import Patches
from slipstream.testing.photographs import make_photographs

PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "data" / "photos"
BATCH, WARM, TIMED, STEP_S = 32, 6, 24, 0.005
MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]


class Photographs(Dataset[Any]):
    """Photographs with a random-resized crop to 224, flip, conversion to float and normalisation, as in torchvision."""

    def __init__(self, paths: list[Path], length: int) -> None:
        self.paths = paths
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index % len(self.paths)]) as opened:
            image = opened.convert("RGB")
        side = random.uniform(0.08, 1.0) ** 0.5
        width, height = int(image.width * side), int(image.height * side)
        left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
        image = image.resize((224, 224), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div_(255).sub_(MEAN).div_(STD), index


def rate(loader: DataLoader[Any]) -> float:
    """Photographs per second. The first batches are not timed, because workers start and buffers fill."""
    batches = iter(loader)
    for _ in itertools.islice(batches, WARM):
        time.sleep(STEP_S)
    start, count = time.perf_counter(), 0
    for images, _ in itertools.islice(batches, TIMED):
        time.sleep(STEP_S)
        count += len(images)
    return count / (time.perf_counter() - start)


def fail(seam: str, fault: BaseException) -> None:
    raise RuntimeError(seam) from fault


def with_threads(count: int, build: Callable[[], DataLoader[Any]]) -> float:
    patches = Patches(fail, lambda: False)
    threads = Threads(lambda why: sys.exit(why))
    threads.install(patches)
    threads.expect(count)
    try:
        return rate(build())
    finally:
        patches.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2, 3])
    options = parser.parse_args()
    head = machine()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        real = sorted(PHOTOGRAPHS.glob("*.JPEG"))
        paths = real or make_photographs(Path(folder))
        dataset = Photographs(paths, BATCH * (WARM + TIMED + 8))

        def build(num_workers: int = 0) -> DataLoader[Any]:
            return DataLoader(dataset, BATCH, shuffle=True, num_workers=num_workers)

        ways: dict[str, Callable[[], float]] = {
            "DataLoader, no workers": lambda: rate(build()),
            "DataLoader, 2 workers": lambda: rate(build(2)),
        }
        for count in options.threads:
            ways[f"thread_workers, {count}"] = lambda count=count: with_threads(count, build)  # type: ignore[misc]
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in random.sample(list(ways.items()), len(ways)):
                rates[name].append(way())
    base = rates["DataLoader, 2 workers"]
    lines = []
    for name, found in rates.items():
        times = paired_interval([a / b for a, b in zip(found, base, strict=True)])
        lines.append(f"| {name} | {median(found):.0f} | {times.middle:.2f} ({times.low:.2f} to {times.high:.2f}) |")
    kind = f"{len(real)} real photographs" if real else "made photographs"
    write_page(
        "threaded",
        f"# Threads instead of worker processes\n\n{head}\n\n{kind}, random-resized crop to 224, flip, normalise, "
        f"batches of {BATCH}, a step of {STEP_S * 1e3:.0f} ms of sleep; {options.rounds} rounds.\n\n"
        "| | photographs per second | times 2 workers |\n|---|---:|---:|\n" + "\n".join(lines) + "\n",
    )


if __name__ == "__main__":
    main()
