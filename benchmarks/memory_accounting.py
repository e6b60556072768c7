"""Tests whether `slipstream memory` accounts for the memory of a step, and whether its forecast is right.

For three models, the benchmark compares the sum by kind with the total of the allocator. It also compares the forecast
from two batch sizes with observed steps of twice and four times the batch. It takes about a minute. Writes
benchmarks/results/memory_accounting.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from slipstream.memory.forecast import forecast
from slipstream.numbers import in_bytes
from slipstream.records import KINDS
from slipstream.testing.memory_trainings import count_peak, list_cases, observe

RESULTS = Path(__file__).with_name("results") / "memory_accounting.md"
FACTOR = 3
BATCH = 16


def main() -> None:
    torch.set_num_threads(1)
    accounts, forecasts = [], []
    for name, case in list_cases(FACTOR).items():
        footprint, counted = observe(case, BATCH), count_peak(case, BATCH)
        shares = " · ".join(f"{kind.replace('_', ' ')} {in_bytes(footprint.kinds[kind])}" for kind in KINDS)
        accounts.append(
            f"| {name} | {counted:,} | {footprint.peak_bytes:,} | {_off(footprint.peak_bytes, counted)} | {shares} |"
        )
        made = forecast([footprint, observe(case, BATCH // 2)])
        assert made is not None
        for size in (2 * BATCH, 4 * BATCH):
            measured = observe(case, size).peak_bytes
            foretold = made.peak_bytes(size)
            forecasts.append(f"| {name} | {size} | {measured:,} | {foretold:,} | {_off(foretold, measured)} |")
        print(name, accounts[-1], *forecasts[-2:], sep="\n", file=sys.stderr)
    RESULTS.write_text(_page(accounts, forecasts), encoding="utf-8")


def _off(found: int, truth: int) -> str:
    return f"{100 * (found / truth - 1):+.2f}%"


def _page(accounts: list[str], forecasts: list[str]) -> str:
    lines = [
        "# Memory: accounting and forecast",
        "",
        f"Written by `benchmarks/memory_accounting.py`: torch {torch.__version__}, CPU, AdamW, batches of {BATCH}.",
        "",
        "The largest number of live bytes within one step. *Allocator* is its running total, counted from before the",
        "first tensor and without slipstream. *Sum by kind* is what `slipstream memory` finds in the same step.",
        "",
        "| model | allocator | sum by kind | off | kinds at the peak |",
        "|---|---|---|---|---|",
        *accounts,
        "",
        f"The forecast from batches of {BATCH} and {BATCH // 2}, against an observed step of the larger batch.",
        "",
        "| model | batch | observed peak | forecast | off |",
        "|---|---|---|---|---|",
        *forecasts,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
