"""Does it matter to the ratio how long blocks are? A base and a fast recipe take turns, now in short blocks and now in
long ones, in one run: what a rider loses when it has stood still weighs more in a short block, and the faster one has
the shorter. Writes benchmarks/results/blocks.md."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from near_best import GRID
from page import machine, write_page
from slipstream.records import Choice, Entrant, Recipe
from slipstream.runner.relay import Relay
from slipstream.testing.photographs import make_photographs
from slipstream.verify.speed import Comparison

RECIPES = {
    "accelerator": Recipe((Choice("workers", 2), Choice("decode_cache"), Choice("fast_resize"))),
    "tabular": Recipe((Choice("batched_fetch"), Choice("fused_optimizer"))),
}
BLOCKS = {"accelerator": ((4, 1), (30, 4)), "tabular": ((195, 1), (8 * 196 - 1, 1))}  # steps timed, and leading in
MOST_ROUNDS = 40


def race(script: list[str], recipe: Recipe, blocks: tuple[tuple[int, int], ...], seconds: float) -> list[Comparison]:
    comparisons = [Comparison() for _ in blocks]
    with Relay(script) as relay:
        for entrant in (Entrant(0, "base"), Entrant(1, "candidate", recipe)):
            failure = relay.enter(entrant)
            if failure:
                raise RuntimeError(failure)
        end_s = time.monotonic() + seconds
        for number in range(1, MOST_ROUNDS + 1):
            for comparison, (num_steps, lead_in) in zip(comparisons, blocks, strict=True):
                laps = [relay.lap(rider, number, num_steps, lead_in) for rider in (0, 1)]
                if any(lap.failure or lap.is_last for lap in laps) or time.monotonic() > end_s:
                    return comparisons
                comparison.add_laps(*laps)
    return comparisons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="for each script")
    options = parser.parse_args()
    head, lines = machine(), []
    with tempfile.TemporaryDirectory() as folder:
        make_photographs(Path(folder), 320)
        for workload in GRID:
            if workload.name not in RECIPES:
                continue
            recipe, blocks = RECIPES[workload.name], BLOCKS[workload.name]
            raced = race(workload.script(Path(folder)), recipe, blocks, options.seconds)
            for (num_steps, _), comparison in zip(blocks, raced, strict=True):
                speed = comparison.speed()
                told = f"{speed.ratio:.2f}x ({speed.low:.2f} to {speed.high:.2f})"
                lines.append(f"| {workload.name} | {recipe} | {num_steps} steps | {speed.num_rounds} | {told} |")
    page = f"""# Short blocks and long ones

{head}

Base and recipe by turns; rounds of short and of long blocks by turns too.

| script | recipe | block | rounds | ratio |
|---|---|---:|---:|---:|
"""
    write_page("blocks", page + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
