"""Tests whether `slipstream run` reaches the speed that the table of `slipstream tune` states.

The benchmark tunes a workload. Then it times whole processes from start to end, with plain python and with the recipe.
The processes take turns of two seconds. While one process runs, all others are stopped. The speed of a machine changes
from minute to minute by more than the required precision, so processes that run one after the other cannot be compared.

Short processes of the same training also take turns. The time of a short process is mostly start-up. The difference
between the times of a long process and a short one is the time of training alone. It shows how long a process must be
so that the start-up does not matter.

Rows are stored, so an interrupted benchmark continues. Writes benchmarks/results/kept_promise.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from near_best import GRID, Workload
from page import machine, store_page
from rows import Row, Rows, judged, table
from slipstream.supervise.signals import ended_by_signals
from slipstream.testing.photographs import make_photographs
from tunings import SLIPSTREAM, run

WITHIN = 0.06
# Long enough for many steps. If a step sleeps while its process is stopped, its measured time is too short.
TURN_S = 2.0
NUM_SHORT = 3
LENGTHS = {  # The arguments of the long process, and those of the short one
    "photographs": (["--epochs", "8"], ["--epochs", "1"]),
    "language": (["--steps", "3000"], ["--steps", "60"]),
    "tabular": (["--epochs", "200"], ["--epochs", "10"]),
    "accelerator": (["--epochs", "30"], ["--epochs", "1"]),
    "segmentation": (["--epochs", "6"], ["--epochs", "1", "--slides", "24"]),
    "deep_language": (["--steps", "5000"], ["--steps", "60"]),
    "actor_critic": (["--steps", "6000"], ["--steps", "60"]),
    "tuned_already": (["--steps", "1500"], ["--steps", "20"]),
}


class Processes:
    """Runs a command `number` times, one process after the other, and counts the time in which they are not stopped.

    A process and all its children form a group, which can be stopped and resumed.
    """

    def __init__(
        self, command: list[str], folder: Path, number: int, environment: dict[str, str] | None = None
    ) -> None:
        self.command, self.folder, self.environment = command, folder, environment
        self.number = self._num_left = number
        self.seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_over(self) -> bool:
        return not self._num_left

    @property
    def seconds_each(self) -> float:
        return self.seconds / self.number

    def run(self, turn_s: float) -> None:
        start = time.perf_counter()
        if self._process is None:
            nowhere = subprocess.DEVNULL
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                start_new_session=True,
            )
        else:
            os.killpg(self._process.pid, signal.SIGCONT)
        try:
            code = self._process.wait(turn_s)
            self._process, self._num_left = None, self._num_left - 1
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGSTOP)
            code = 0
        self.seconds += time.perf_counter() - start
        if code:
            raise RuntimeError(f"{' '.join(self.command)} ended with exit code {code}")

    def end(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def by_turns(lines: list[Processes], turn_s: float = TURN_S) -> None:
    """Runs all commands in turns until they are finished. The order of each round is random."""
    draws = random.Random(0)
    try:
        while running := [one for one in lines if not one.is_over]:
            for line in draws.sample(running, len(running)):
                line.run(turn_s)
    finally:
        for line in lines:
            line.end()


def keep(workload: Workload, photographs: Path, folder: Path, budget: str) -> Row:
    lengths = [[*workload.script(photographs), *length] for length in LENGTHS[workload.name]]
    limits = ["--budget", budget] if budget else []
    run([*SLIPSTREAM, "tune", "--quiet", *limits, "--json", "out.json", *lengths[0]], folder)
    told = json.loads((folder / "out.json").read_text())
    total = told["total"] if told["tuning"]["recipe"] else {"ratio": 1.0, "low": 1.0, "high": 1.0}
    pairs = [
        [Processes([*start, *script], folder, number) for start in ([sys.executable], [*SLIPSTREAM, "run"])]
        for script, number in zip(lengths, (1, NUM_SHORT), strict=True)
    ]
    by_turns([line for pair in pairs for line in pair])
    long_s, short_s = ([line.seconds_each for line in pair] for pair in pairs)
    return {"table": total, "recipe": told["tuning"]["recipe"], "long_s": long_s, "short_s": short_s}


def ratios(row: Row) -> tuple[float, float]:
    """The time with plain python, divided by the time with the recipe: for whole processes, and for training alone."""
    (bare_s, tuned_s), (bare_start_s, tuned_start_s) = row["long_s"], row["short_s"]
    return bare_s / tuned_s, (bare_s - bare_start_s) / (tuned_s - tuned_start_s)


def apart(ratio: float, row: Row) -> float:
    """The relative difference between the ratio and the total in the table of tune."""
    return ratio / float(row["table"]["ratio"]) - 1


def verdict(row: Row) -> tuple[bool, bool]:
    """Returns two answers about the speed of the training.

    The first is whether the speed is within the required precision of the table's total. The second is whether it is
    beyond this precision for all values of the total's interval.
    """
    training, said = ratios(row)[1], row["table"]
    is_within = abs(apart(training, row)) <= WITHIN
    is_beyond = training / said["high"] - 1 > WITHIN or training / said["low"] - 1 < -WITHIN
    return is_within, is_beyond


def render(rows: dict[str, Row], head: str) -> str:
    lines = []
    for name, row in rows.items():
        said = row["table"]
        recipe = ", ".join(f"{key}={value}" for key, value in row["recipe"].items()) or "nothing was kept"
        cells = [name, recipe, f"{said['ratio']:.2f}x ({said['low']:.2f} to {said['high']:.2f})"]
        cells += [f"{row['long_s'][0]:.0f} and {row['long_s'][1]:.0f} s"]
        cells += [f"{row['short_s'][0]:.1f} and {row['short_s'][1]:.1f} s"]
        cells += [f"{ratio:.2f}x ({apart(ratio, row):+.1%})" for ratio in ratios(row)]
        lines.append([*cells, judged(*verdict(row)), row["commit"], row["day"], row["processor"]])
    titles = ["workload", "recipe", "total of tune:", "plain and tuned, from start to end:", "short ones:"]
    titles += ["whole processes:", "without the short ones:", "", "commit", "day", "on"]
    return f"""# The total of tune and the speed of run

{head}

{table(titles, lines)}

Plain and tuned processes, long and short ones, took turns of {TURN_S:g} s while the others were stopped. After each
ratio stands its difference from the total of tune. *Without the short ones*: the time of a short process (the mean of
{NUM_SHORT}), which is mostly start-up and compilation, is subtracted from the time of the long one, on both sides. The
longer a process, the closer it comes to this ratio. Required: this ratio is within {WITHIN:.0%} of the total. It is
missed only if it is farther away from every value of the total's interval.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(LENGTHS), action="append")
    parser.add_argument("--budget", default="", help="the budget of tune; default: its own default")
    options = parser.parse_args()
    head, rows, names = machine(), Rows("kept_promise"), [workload.name for workload in GRID]
    with tempfile.TemporaryDirectory() as place, ended_by_signals():
        photographs = Path(place) / "pictures"
        make_photographs(photographs, 320)
        for workload in GRID:
            if not options.only or workload.name in options.only:
                folder = Path(place) / workload.name
                folder.mkdir()
                measure = partial(keep, workload, photographs, folder, options.budget)
                rows.measure(workload.name, measure, workload.path, settings=LENGTHS[workload.name])
                store_page("kept_promise", render(rows.stored(names), head))
    missed = [name for name, row in rows.stored(names).items() if verdict(row) == (False, True)]
    if missed:
        sys.exit(f"The speed of run is not the total of tune: {', '.join(missed)}.")


if __name__ == "__main__":
    main()
