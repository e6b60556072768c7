"""Tests whether the recipe of tune is close to the best recipe in a grid of settings.

Every cell of the grid is raced against the base. Then tune searches the same script, with several seeds, and the best
cell is raced against each recipe of tune. Cells, tunings and races are stored when they are measured, so an interrupted
benchmark continues where it stopped. Cells are valid for one script and one processor. Writes
benchmarks/results/near_best.md.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from intervals import Interval, median_interval, paired_interval
from page import RESULTS, machine, processor, store_page
from races import RaceFailedError, Races, race
from recipes import parse_recipe, written
from rows import Row, Rows, judged, read_json, table, write_json
from slipstream.records import Choice, Recipe, Setting, Tick
from slipstream.store.sessions import save_session
from slipstream.supervise.signals import ended_by_signals
from slipstream.testing.photographs import make_photographs
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import SilentListener
from slipstream.workflows.tune import tune_script

WORKLOADS = Path(__file__).parent / "workloads"
ROUNDS = 12  # Rounds of a race between a cell and the base
SEEDS = 3  # Tunings of each workload
LEAST_MEDIAN, LEAST_WORST = 0.97, 0.90  # Shares of the speed of the best cell
SHARE = 0.2  # Share of the grid's time that a tuning may take
WATCHING_S = 36.0  # The time of tune outside its budget: the check before it, and the end of the last trials
CHECK_S = 10.0
OFF: Setting = False


@dataclass(frozen=True)
class Workload:
    name: str
    axes: dict[str, tuple[Setting, ...]]  # The settings of each technique; False: without the technique
    needs_photographs: bool = False
    tick: Tick = "optimizer"

    @property
    def path(self) -> Path:
        return WORKLOADS / f"{self.name}.py"

    def script(self, photographs: Path) -> list[str]:
        data = ["--data", str(photographs)] if self.needs_photographs else []
        return [str(self.path), *data]

    def facts(self) -> dict[str, str]:
        """The facts on which the result of a cell depends. Stored cells with other facts are not valid."""
        return {"processor": processor(), "script": hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]}

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
    Workload(  # A step takes about a second.
        "segmentation",
        {
            "workers": (OFF, 1, 2),
            "channels_last": (OFF, True),
            "mixed_precision": (OFF, "bf16"),
            "allocator": (OFF, "huge_pages"),
        },
    ),
    Workload(  # Compiling takes about 40 seconds.
        "deep_language",
        {
            "compile": (OFF, "default"),
            "mixed_precision": (OFF, "bf16"),
            "fused_optimizer": (OFF, True),
            "allocator": (OFF, "huge_pages"),
            "cpu_threads": (OFF, 1),
        },
    ),
    Workload(  # Reinforcement learning, without a loader
        "actor_critic",
        {
            "compile": (OFF, "default"),
            "mixed_precision": (OFF, "bf16"),
            "fused_optimizer": (OFF, True),
            "allocator": (OFF, "huge_pages"),
            "cpu_threads": (OFF, 1),
        },
    ),
    Workload(  # No technique makes this workload faster.
        "tuned_already",
        {
            "compile": (OFF, "default"),
            "flush_denormals": (OFF, True),
            "allocator": (OFF, "keep", "huge_pages"),
            "cpu_threads": (OFF, 1),
        },
    ),
]


class Grid:
    """The cells of a workload's grid, stored in results/grid-<name>.json."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._path = RESULTS / f"grid-{workload.name}.json"
        stored = read_json(self._path)
        facts = workload.facts()
        is_valid = {key: stored.get(key) for key in facts} == facts
        self._grid: dict[str, Any] = stored if is_valid else {**facts, "cells": {}}
        self._cells: dict[str, dict[str, Any]] = self._grid["cells"]

    def measure(self, photographs: Path) -> None:
        cells = list(self._workload.cells())
        assert len(cells) <= 32
        for number, recipe in enumerate(cells, 1):
            if str(recipe) not in self._cells:
                self._cells[str(recipe)] = self._measure_cell(photographs, recipe)
                self._save()
                cell = f"{self._workload.name} {number}/{len(cells)} {recipe}: {self._cells[str(recipe)]}"
                print(cell, file=sys.stderr, flush=True)

    def _measure_cell(self, photographs: Path, recipe: Recipe) -> dict[str, Any]:
        start = time.monotonic()
        try:
            ratios = race(self._workload.script(photographs), [Recipe(), recipe], ROUNDS, self._workload.tick)
        except RaceFailedError as failed:
            return {"failure": str(failed), "seconds": time.monotonic() - start}
        interval = paired_interval(ratios)
        ratio = {"ratio": interval.middle, "low": interval.low, "high": interval.high}
        return {**ratio, "seconds": time.monotonic() - start}

    def _save(self) -> None:
        write_json(self._path, self._grid)

    @property
    def seconds(self) -> float:
        return sum(float(cell["seconds"]) for cell in self._cells.values())

    def ratio(self, recipe: Recipe) -> float:
        return float(self._cells.get(str(recipe), {}).get("ratio", 0.0)) if recipe.choices else 1.0

    def best(self) -> Recipe:
        return max((Recipe(), *self._workload.cells()), key=self.ratio)


def run_tune(workload: Workload, photographs: Path, seed: int, budget_s: float, sessions: Path | None) -> Row:
    """Returns the recipe that tune finds, and the seconds of the tuning."""
    start = time.monotonic()
    options = TuneOptions(budget_s=budget_s, seed=seed)
    session = tune_script(workload.script(photographs), options, SilentListener(), check_s=CHECK_S)
    seconds = time.monotonic() - start
    if sessions is not None:
        save_session(session, sessions)
    assert session.tuning is not None
    return {"tuned": written(session.tuning.recipe), "tune_s": seconds}


def measure_row(
    rows: Rows,
    key: str,
    workload: Workload,
    photographs: Path,
    seed: int,
    budget_s: float | None,
    sessions: Path | None,
) -> None:
    grid = Grid(workload)
    grid.measure(photographs)
    budget_s = budget_s or SHARE * grid.seconds - WATCHING_S
    row = rows.measure(
        key, lambda: run_tune(workload, photographs, seed, budget_s, sessions), workload.path, settings=processor()
    )
    best = grid.best()
    near = Races().ratio(
        workload.name,
        workload.script(photographs),
        [workload.path],
        best,
        parse_recipe(row["tuned"]),
        workload.tick,
    )
    rows.extend(key, best=written(best), ratio=grid.ratio(best), grid_s=grid.seconds, near=asdict(near))


def render(rows: dict[str, Row], head: str) -> tuple[str, bool]:
    """The page, and whether all thresholds are met."""
    rows = {name: row for name, row in rows.items() if "near" in row}  # Other rows have no race yet.
    lines, ratios = [], list[Interval]()
    for name, row in rows.items():
        near = Interval(**row["near"])
        ratios.append(near)
        of_best = f"{near.middle:.1%} ({near.low:.1%} to {near.high:.1%})"
        share = f"{row['tune_s']:.0f} of {row['grid_s']:.0f} s ({row['tune_s'] / row['grid_s']:.0%})"
        against = f"{row['ratio']:.2f}x"
        line = [name, row["best"] or "nothing", against, row["tuned"] or "nothing", of_best, share]
        lines.append([*line, row["commit"], row["day"], row["processor"]])
    middle = median_interval([near.middle for near in ratios])
    worst = min(ratios, key=lambda near: near.middle)
    longest = max(row["tune_s"] / row["grid_s"] for row in rows.values())
    is_met = middle.high >= LEAST_MEDIAN and all(near.high >= LEAST_WORST for near in ratios) and longest <= SHARE
    titles = ["workload", "best of the grid", "against the base:", "recipe of tune", "speed relative to the best:"]
    titles += ["time:", "commit", "day", "on"]
    page = f"""# Near the best

{head}

{table(titles, lines)}

- The median of the {len(ratios)} runs is {middle.middle:.1%} of the speed of the best cell ({middle.low:.1%} to
  {middle.high:.1%}). Required: at least {LEAST_MEDIAN:.0%}:
  {judged(middle.middle >= LEAST_MEDIAN, middle.high < LEAST_MEDIAN)}.
- The worst run reaches {worst.middle:.1%} ({worst.low:.1%} to {worst.high:.1%}). Required: at least {LEAST_WORST:.0%}:
  {judged(worst.middle >= LEAST_WORST, any(near.high < LEAST_WORST for near in ratios))}.
- The longest run takes {longest:.0%} of the grid's time. Required: at most {SHARE:.0%}: {judged(longest <= SHARE)}.

A threshold is missed only if the whole 95% interval is beyond it. Each cell of the grid was raced against the base
for {ROUNDS} rounds, in two new processes that took turns. The cells are in grid-*.json. The best cell and the recipe of
tune were then raced against each other, in several pairs of new processes (races.json).
"""
    return page, is_met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[workload.name for workload in GRID], action="append")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--budget-s", type=float, help="the budget of tune; default: a fifth of the grid's time, less the check"
    )
    parser.add_argument("--sessions", type=Path, help="a folder to save the sessions of tune in")
    options = parser.parse_args()
    head, rows, is_met = machine(), Rows("near_best"), True
    keys = {(one.name, seed): f"{one.name}, seed {seed}" for one in GRID for seed in range(options.seeds)}
    with tempfile.TemporaryDirectory() as folder, ended_by_signals():
        photographs = Path(folder)
        make_photographs(photographs, 320)
        for workload in GRID:
            if options.only and workload.name not in options.only:
                continue
            for seed in range(options.seeds):
                key = keys[workload.name, seed]
                measure_row(rows, key, workload, photographs, seed, options.budget_s, options.sessions)
                page, is_met = render(rows.stored(keys.values()), head)
                store_page("near_best", page)
    if not is_met:
        sys.exit("A threshold of near_best.md is missed.")


if __name__ == "__main__":
    main()
