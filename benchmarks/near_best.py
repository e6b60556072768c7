"""Tests whether the recipe of tune is close to the best recipe in a grid of settings.

Every cell of the grid is raced against the base. Then tune searches the same script, and the best cell is raced against
the recipe of tune. Each cell is stored when it is measured, so an interrupted run continues where it stopped, if the
script and the processor are the same. The final comparisons are stored too, so the page shows every workload that was
ever measured, with its day and machine. Writes benchmarks/results/near_best.md.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import RESULTS, machine, processor, write_page
from slipstream.records import Choice, Recipe, Setting, Speed, Tick, TrialSpec
from slipstream.supervise.race import ProcessBackend
from slipstream.techniques._core.catalogue import environment_of
from slipstream.testing.photographs import make_photographs
from slipstream.verify.confidence_sequence import ConfidenceSequence

WORKLOADS = Path(__file__).parent / "workloads"
BLOCK_S = 0.4
ROUNDS = 12
FINAL_ROUNDS = 96  # enough for the interval to be narrower than the required precision
NEAR = 0.95  # of the grid's best
SHARE = 0.2  # of the grid's time
WATCHING_S = 36.0  # the time of tune outside its budget: the check before, and the end of the last trials
OFF: Setting = False


@dataclass(frozen=True)
class Workload:
    name: str
    axes: dict[str, tuple[Setting, ...]]  # False: without the technique
    needs_photographs: bool = False
    tick: Tick = "optimizer"

    def script(self, photographs: Path) -> list[str]:
        data = ["--data", str(photographs)] if self.needs_photographs else []
        return [str(WORKLOADS / f"{self.name}.py"), *data]

    def facts(self) -> dict[str, str]:
        """What a cell was measured with. Cells with other facts are not valid here."""
        source = (WORKLOADS / f"{self.name}.py").read_bytes()
        return {"processor": processor(), "script": hashlib.sha256(source).hexdigest()[:16]}

    def cells(self) -> Iterator[Recipe]:
        for settings in itertools.product(*self.axes.values()):
            chosen = zip(self.axes, settings, strict=True)
            recipe = Recipe(tuple(Choice(name, setting) for name, setting in chosen if setting is not OFF))
            if recipe.choices and not ("prefetch" in str(recipe) and "workers" not in str(recipe)):
                yield recipe


GRID = [
    Workload(
        "photographs",
        {
            "workers": (OFF, 1, 2, 3),
            "channels_last": (OFF, True),
            "allocator": (OFF, "huge_pages"),
            "cpu_threads": (OFF, 1),
        },
        needs_photographs=True,
    ),
    Workload(
        "language",
        {
            "compile": (OFF, "default"),
            "fused_attention": (OFF, True),
            "fused_optimizer": (OFF, True),
            "allocator": (OFF, "huge_pages"),
            "cpu_threads": (OFF, 1),
        },
    ),
    Workload(
        "tabular",
        {
            "workers": (OFF, 1, 2, 4),
            "compile": (OFF, "default"),
            "fused_optimizer": (OFF, True),
            "cpu_threads": (OFF, 1),
        },
    ),
    Workload(
        "accelerator",
        {"workers": (OFF, 1, 2, 4), "prefetch": (OFF, 4), "cpu_threads": (OFF, 1), "allocator": (OFF, "huge_pages")},
        needs_photographs=True,
    ),
]


def race(
    workload: Workload, photographs: Path, recipes: list[Recipe], num_rounds: int
) -> list[ConfidenceSequence] | str:
    """Race each recipe against the first. Returns a string with the reason if one of them could not run."""

    def variables(recipe: Recipe) -> dict[str, str]:
        return {k: v for c in recipe.choices for k, v in environment_of(c.technique, c.setting).items()}

    rng = random.Random(0)
    with ProcessBackend(workload.script(photographs), tick=workload.tick, environment_of=variables) as process_backend:
        for ident, recipe in enumerate(recipes):
            failure = process_backend.enter(TrialSpec(ident, "candidate" if recipe.choices else "base", recipe))
            if failure:
                return str(failure)
        first = process_backend.run_block(0, 0, 4, 1)
        num_steps = max(4, math.ceil(BLOCK_S / max(first.step_s, 1e-4)))
        comparisons = [ConfidenceSequence() for _ in recipes[1:]]
        for number in range(1, num_rounds + 1):
            order = rng.sample(range(len(recipes)), len(recipes))
            timings = {ident: process_backend.run_block(ident, number, num_steps, 1) for ident in order}
            for failed in (timing.failure for timing in timings.values() if timing.failure):
                return str(failed)
            for comparison, ident in zip(comparisons, range(1, len(recipes)), strict=True):
                comparison.add_timings(timings[0], timings[ident])
        return comparisons


def measure_grid(workload: Workload, photographs: Path, kept: dict[str, Any], save: Any) -> None:
    cells = list(workload.cells())
    assert len(cells) <= 32
    for number, recipe in enumerate(cells, 1):
        if str(recipe) in kept:
            continue
        start = time.monotonic()
        result = race(workload, photographs, [Recipe(), recipe], ROUNDS)
        seconds = time.monotonic() - start
        if isinstance(result, str):
            kept[str(recipe)] = {"failure": result, "seconds": seconds}
        else:
            speed = result[0].speed()
            kept[str(recipe)] = {"ratio": speed.ratio, "low": speed.low, "high": speed.high, "seconds": seconds}
        save()
        print(f"{workload.name} {number}/{len(cells)} {recipe}: {kept[str(recipe)]}", file=sys.stderr, flush=True)


def run_tune(workload: Workload, photographs: Path, budget: str, sessions: Path | None) -> tuple[Recipe, float]:
    """The recipe that `slipstream tune` writes, and how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "slipstream", "tune", "--quiet", "--seconds", "10", "--budget", budget]
        start = time.monotonic()
        command += ["--json", "out.json"]
        subprocess.run([*command, *workload.script(photographs)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - start
        recipe = json.loads((Path(folder) / "out.json").read_text())["tuning"]["recipe"]
        if sessions is not None:
            shutil.copytree(Path(folder) / ".slipstream" / "sessions", sessions, dirs_exist_ok=True)
    return Recipe(tuple(Choice(name, setting) for name, setting in recipe.items())), seconds


def winner(workload: Workload, kept: dict[str, Any]) -> Recipe:
    best = max(workload.cells(), key=lambda recipe: kept[str(recipe)].get("ratio", 0.0))
    return best if kept[str(best)].get("ratio", 0.0) > 1.0 else Recipe()


def race_final(workload: Workload, photographs: Path, best: Recipe, tuned: Recipe) -> Speed:
    """The speed of the tuned recipe relative to the best cell: 1 is as fast, more is faster than the grid."""
    if set(best.choices) == set(tuned.choices):
        return Speed(1.0, 1.0, 1.0)
    result = race(workload, photographs, [best, tuned], FINAL_ROUNDS)
    if isinstance(result, str):
        raise RuntimeError(result)
    return result[0].speed()


def judge(workload: Workload, photographs: Path, budget: str | None, sessions: Path | None) -> dict[str, Any]:
    path = RESULTS / f"grid-{workload.name}.json"
    grid: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    facts = workload.facts()
    if {key: grid.get(key) for key in facts} != facts:
        grid = {**facts, "cells": {}}
    kept = grid["cells"]

    def save() -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(grid, indent=1) + "\n")
        os.replace(partial, path)

    measure_grid(workload, photographs, kept, save)
    grid_s = sum(cell["seconds"] for cell in kept.values())
    tuned, tune_s = run_tune(workload, photographs, budget or f"{SHARE * grid_s - WATCHING_S:.0f}s", sessions)
    best = winner(workload, kept)
    near = race_final(workload, photographs, best, tuned)
    ratio = kept.get(str(best), {}).get("ratio", 1.0)
    return {
        "best": str(best),
        "ratio": ratio,
        "tuned": str(tuned),
        "near": [near.ratio, near.low, near.high],
        "tune_s": tune_s,
        "grid_s": grid_s,
        "day": time.strftime("%Y-%m-%d"),
        "processor": grid["processor"],
    }


def render(rows: dict[str, dict[str, Any]], head: str) -> str:
    lines = [
        "| workload | best of the grid | against the base | recipe of tune | speed relative to the best | time | day |"
        " on |",
        "|---|---|---:|---|---:|---:|---|---|",
    ]
    for name, row in rows.items():
        ratio, low, high = row["near"]
        of_best = f"{ratio:.1%} ({low:.1%} to {high:.1%})"
        share = f"{row['tune_s']:.0f} of {row['grid_s']:.0f} s ({row['tune_s'] / row['grid_s']:.0%})"
        cells = [name, row["best"], f"{row['ratio']:.2f}x", row["tuned"], of_best, share, row["day"], row["processor"]]
        lines.append("| " + " | ".join(cells) + " |")
    return (
        f"# Near the best\n\n{head}\n\n" + "\n".join(lines) + "\n\n"
        f"Each cell of the grid was raced against the base for {ROUNDS} rounds, in trials that took turns. Each trial "
        "is a new process. The cells are in grid-*.json. The best cell and the recipe of tune were then raced against "
        f"each other. Required: at least {NEAR:.0%} of the speed of the best cell, in at most {SHARE:.0%} of the time "
        "of the grid.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[workload.name for workload in GRID], action="append")
    parser.add_argument("--budget", help="of tune; default: a fifth of the grid's time, less the check")
    parser.add_argument("--sessions", type=Path, help="a folder to save the sessions of tune in")
    options = parser.parse_args()
    head = machine()
    comparisons = RESULTS / "near_best.json"
    rows: dict[str, dict[str, Any]] = json.loads(comparisons.read_text()) if comparisons.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        photographs = Path(folder)
        make_photographs(photographs, 320)
        for workload in GRID:
            if not options.only or workload.name in options.only:
                rows[workload.name] = judge(workload, photographs, options.budget, options.sessions)
                comparisons.write_text(json.dumps(rows, indent=1) + "\n")
    write_page("near_best", render(rows, head))
    worst = min(row["near"][0] for row in rows.values())
    slowest = max(row["tune_s"] / row["grid_s"] for row in rows.values())
    if worst < NEAR or slowest > SHARE:
        sys.exit(f"tune reached {worst:.1%} of the best cell in the worst case, in up to {slowest:.0%} of the time.")


if __name__ == "__main__":
    main()
