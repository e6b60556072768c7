"""Is the memory of a step accounted for, and foretold? Three models: the sum by kind against the allocator's own total,
and the forecast from two sizes against steps of twice and four times the batch. About a minute."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from slipstream.memory.forecast import forecast
from slipstream.records import KINDS
from slipstream.report.text.numbers import in_bytes
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
        "# Memory: accounted for, and foretold",
        "",
        f"Written by `benchmarks/memory_accounting.py`: torch {torch.__version__}, CPU, AdamW, batches of {BATCH}.",
        "",
        "The most bytes alive within one step: the allocator's running total, where it counts from before the first",
        "tensor and nothing else looks on, against the sum by kind that `slipstream memory` finds in the same step.",
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
