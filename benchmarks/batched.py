"""Measures rows per second from a TensorDataset of a million rows.

Compares the plain loader, the loader with batched_fetch, and tensors that are sliced by hand. The three cases take
turns in one process. Writes benchmarks/results/batched.md.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from intervals import paired_interval
from page import machine, write_page
from slipstream.data.samples.batch_fetch import BatchedFetch
from slipstream.seams.patching import Patches

NUM_ROWS, NUM_COLUMNS, BATCH = 1_000_000, 100, 1024
LEAST_TIMES, LEAST_SHARE = 20.0, 0.9
PLAIN, OURS, BY_HAND = "DataLoader", "DataLoader with batched_fetch", "sliced by hand"


def fail(seam: str, fault: BaseException) -> None:
    raise RuntimeError(seam) from fault


def by_hand(rows: torch.Tensor, target: torch.Tensor) -> Iterator[Any]:
    order = torch.randperm(len(rows))
    for at in range(0, len(rows), BATCH):
        chosen = order[at : at + BATCH]
        yield rows[chosen], target[chosen]


def rate(batches: Iterator[Any], num_batches: int) -> float:
    """Rows per second. The first batches, in which the order is drawn and batched_fetch is verified, are not timed."""
    for _ in itertools.islice(batches, 4):
        pass
    start = time.perf_counter()
    num_rows = sum(len(x) for x, _ in itertools.islice(batches, num_batches))
    return num_rows / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    head = machine()
    torch.manual_seed(0)
    rows, target = torch.randn(NUM_ROWS, NUM_COLUMNS), torch.randint(0, 2, (NUM_ROWS,))
    loader = DataLoader(TensorDataset(rows, target), batch_size=BATCH, shuffle=True)

    def with_ours() -> float:
        patches = Patches(fail, lambda: False)
        BatchedFetch(lambda why: sys.exit(why)).install(patches)
        try:
            return rate(iter(loader), 400)
        finally:
            patches.close()

    ways: dict[str, Callable[[], float]] = {
        PLAIN: lambda: rate(iter(loader), 40),
        OURS: with_ours,
        BY_HAND: lambda: rate(by_hand(rows, target), 400),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            rates[name].append(way())
    times = paired_interval([a / b for a, b in zip(rates[OURS], rates[PLAIN], strict=True)])
    share = paired_interval([a / b for a, b in zip(rates[OURS], rates[BY_HAND], strict=True)])
    lines = "\n".join(f"| {name} | {median(found) / 1e6:.2f} |" for name, found in rates.items())
    write_page(
        "batched",
        f"# A million rows\n\n{head}\n\n{NUM_ROWS:,} rows of {NUM_COLUMNS} floats and a class, shuffled, batches of "
        f"{BATCH}; median of {options.rounds} rounds.\n\n| | million rows per second |\n|---|---:|\n{lines}\n\n"
        f"batched_fetch reaches {times.middle:.0f} times the rate of the plain loader ({times.low:.0f} to "
        f"{times.high:.0f}) and {share.middle:.0%} of the rate of slicing by hand ({share.low:.0%} to "
        f"{share.high:.0%}). Required: {LEAST_TIMES:.0f} times, {LEAST_SHARE:.0%}.\n",
    )
    if times.middle < LEAST_TIMES or share.middle < LEAST_SHARE:
        sys.exit("batched_fetch is slower than it should be.")


if __name__ == "__main__":
    main()
