"""Measures how many ready images per second worker processes can transfer.

Compares the plain loader, the loader with buffer_reuse, and a single copy in this process. The copy shows the limit
that memory sets. All cases take turns in one process. Writes benchmarks/results/handover.md.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from intervals import paired_interval
from page import machine, write_page
from slipstream.data.transport.buffer_reuse import BufferReuse
from slipstream.seams.patching import Patches

NUM_IMAGES, SHAPE, BATCH = 256, (3, 224, 224), 32
NUM_WARM, NUM_TIMED = 6, 24  # Batches. The first ones are not timed, because workers start and buffers are made then.
LEAST_TIMES = 2.0


class Ready(Dataset[Any]):
    def __init__(self) -> None:
        self.images = torch.randn(NUM_IMAGES, *SHAPE)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        return self.images[index % NUM_IMAGES], index


def fail(seam: str, fault: BaseException) -> None:
    raise RuntimeError(seam) from fault


@contextmanager
def buffers(dataset: Ready) -> Iterator[None]:
    patches = Patches(fail, lambda: False)
    reuse = BufferReuse()
    reuse.want(dataset)
    reuse.install(patches)
    try:
        yield
    finally:
        patches.close()


def rate(batches: Iterator[Any]) -> float:
    """Images per second. The script reads each batch once, as a training step would."""
    for x, _ in itertools.islice(batches, NUM_WARM):
        x.sum()
    start = time.perf_counter()
    for x, _ in itertools.islice(batches, NUM_TIMED):
        x.sum()
    return NUM_TIMED * BATCH / (time.perf_counter() - start)


def copied(dataset: Ready) -> Iterator[Any]:
    """Yields batches that are stacked into one reused buffer, without a worker process and without a transfer."""
    out = torch.empty(BATCH, *SHAPE)
    for at in itertools.count(step=BATCH):
        yield torch.stack([dataset[at + number][0] for number in range(BATCH)], out=out), at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    head = machine()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # The workers need the other core.
    dataset = Ready()

    def plain(num_workers: int) -> float:
        return rate(iter(DataLoader(dataset, BATCH, num_workers=num_workers)))

    def ours(num_workers: int) -> float:
        with buffers(dataset):
            return plain(num_workers)

    ways: dict[str, Callable[[], float]] = {
        "DataLoader, 1 worker": lambda: plain(1),
        "with buffer_reuse, 1 worker": lambda: ours(1),
        "DataLoader, 2 workers": lambda: plain(2),
        "with buffer_reuse, 2 workers": lambda: ours(2),
        "stacked in this process, no hand-over": lambda: rate(copied(dataset)),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            rates[name].append(way())
    found = list(rates.values())
    times = [paired_interval([a / b for a, b in zip(found[at + 1], found[at], strict=True)]) for at in (0, 2)]
    share = paired_interval([a / b for a, b in zip(found[1], found[4], strict=True)])
    lines = "\n".join(f"| {name} | {median(values):,.0f} |" for name, values in rates.items())
    write_page(
        "handover",
        f"# Transfer of ready batches\n\n{head}\n\nImages of {'x'.join(map(str, SHAPE))} floats that are already in "
        f"memory, batches of {BATCH}, each read once by the script; median of {options.rounds} rounds, every case in "
        f"every round.\n\n| | images per second |\n|---|---:|\n{lines}\n\n"
        f"buffer_reuse reaches {times[0].middle:.1f} times the rate of the plain loader with one worker "
        f"({times[0].low:.1f} to {times[0].high:.1f}), and {times[1].middle:.1f} times with two ({times[1].low:.1f} to "
        f"{times[1].high:.1f}). Required: {LEAST_TIMES:.0f} times. One worker reaches {share.middle:.0%} of the rate "
        f"of stacking in this process ({share.low:.0%} to {share.high:.0%}), which is the limit without a transfer.\n",
    )
    if min(interval.middle for interval in times) < LEAST_TIMES:
        sys.exit("buffer_reuse is slower than it should be.")


if __name__ == "__main__":
    main()
