"""Measures how fast a loader reads files that are not in memory, with and without read_ahead.

The two cases take turns in one process. The files are dropped from the page cache before every epoch. Writes
benchmarks/results/cold_files.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from intervals import paired_interval
from page import machine, write_page
from slipstream.data.files.read_ahead import ReadAhead
from slipstream.machine.disk import read_disk_kind
from slipstream.seams.patching import Patches

NUM_FILES, FILE_BYTES, BATCH, DEPTH = 1000, 120_000, 16, 8


class Files(Dataset[Any]):
    def __init__(self, folder: Path) -> None:
        self.paths = [folder / f"{number:05}.bin" for number in range(NUM_FILES)]
        for path in self.paths:
            path.write_bytes(os.urandom(FILE_BYTES))

    def __len__(self) -> int:
        return NUM_FILES

    def __getitem__(self, index: int) -> Any:
        return torch.frombuffer(bytearray(self.paths[index].read_bytes()), dtype=torch.uint8)[:1024]

    def forget(self) -> None:
        for path in self.paths:
            handle = os.open(path, os.O_RDWR)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def fail(seam: str, fault: BaseException) -> None:
    raise RuntimeError(seam) from fault


def rate(dataset: Files, num_workers: int) -> float:
    """Files per second in one epoch."""
    dataset.forget()
    start = time.perf_counter()
    for _ in DataLoader(dataset, BATCH, shuffle=True, num_workers=num_workers):
        pass
    return NUM_FILES / (time.perf_counter() - start)


def rate_ahead(dataset: Files, num_workers: int) -> float:
    patches = Patches(fail, lambda: False)
    ahead = ReadAhead(DEPTH, lambda what: None, lambda why: sys.exit(why))
    ahead.want(dataset)
    ahead.install(patches)
    try:
        return rate(dataset, num_workers)
    finally:
        patches.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    head = machine()
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        dataset, disk = Files(Path(folder)), read_disk_kind(Path(folder))
        ways: dict[str, Callable[[], float]] = {
            "no workers": lambda: rate(dataset, 0),
            "no workers, with read_ahead": lambda: rate_ahead(dataset, 0),
            "1 worker": lambda: rate(dataset, 1),
            "1 worker, with read_ahead": lambda: rate_ahead(dataset, 1),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                rates[name].append(way())
    found = list(rates.values())
    times = [paired_interval([a / b for a, b in zip(found[at + 1], found[at], strict=True)]) for at in (0, 2)]
    lines = "\n".join(f"| {name} | {median(values):,.0f} |" for name, values in rates.items())
    write_page(
        "cold_files",
        f"# Files that are not in memory\n\n{head} The disk: {disk}.\n\n{NUM_FILES:,} files of {FILE_BYTES // 1000} "
        f"KB, shuffled, batches of {BATCH}, dropped from the page cache before every epoch; median of {options.rounds} "
        f"rounds.\n\n| | files per second |\n|---|---:|\n{lines}\n\n"
        f"read_ahead={DEPTH} is {times[0].middle:.2f} times as fast without workers ({times[0].low:.2f} to "
        f"{times[0].high:.2f}), and {times[1].middle:.2f} times with one worker ({times[1].low:.2f} to "
        f"{times[1].high:.2f}). If the memory is large enough, the files are in memory from the second epoch on, and "
        "read_ahead gains nothing.\n",
    )


if __name__ == "__main__":
    main()
