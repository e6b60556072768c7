"""Runs `make demo` several times in a clean clone of the repository. During some runs `pip install` runs too.

The clone is set up once, and its set-up is not timed. Before each run, everything that the previous run wrote is
removed, and the caches are empty. Rows are stored, so an interrupted benchmark continues. Writes
benchmarks/results/demo_runs.md.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from page import machine, store_page
from recipes import written
from rows import PACKAGE, ROOT, Row, Rows, judged, table
from slipstream.supervise.signals import ended_by_signals
from tunings import beside, last_tuning, raced_share, run

RUNS, RUNS_BESIDE_PIP = 10, 3
MOST_S = 300.0
PIP_AFTER_S = 60.0  # `pip install` starts after this time, during the races.
STOPWATCH = re.compile(r"^Stopwatch.*: ([\d.]+)x as fast", re.MULTILINE)
DEMO = PACKAGE / "testing" / "demo.py"
# Waits, and installs the packages of the tests into an environment of its own.
INSTALL = 'sleep "$1" && "$2" -m venv "$3" && "$3/bin/pip" install --no-cache-dir -c constraints.txt torch ".[test]"'


def set_up(clone: Path) -> None:
    run(["git", "clone", "--quiet", str(ROOT), str(clone)], clone.parent)
    run(["make", f"PYTHON={sys.executable}", "setup"], clone, clone.parent / "setup.log")


def run_demo(clone: Path, has_pip: bool) -> Row:
    if not clone.exists():
        set_up(clone)
    run(["git", "clean", "-dfxq", "--exclude=.venv"], clone)
    with tempfile.TemporaryDirectory(dir=clone.parent) as name:
        place = Path(name)
        log = place / "demo.log"
        command = ["env", "-u", "SLIPSTREAM_CACHE", f"XDG_CACHE_HOME={place / 'cache'}", "make", "demo"]
        with _install(clone, place) if has_pip else contextlib.nullcontext():
            start = time.monotonic()
            with beside(command, clone, log) as process:
                code = process.wait()
            seconds = time.monotonic() - start
        stopwatch = STOPWATCH.search(log.read_text(errors="replace"))
    row: Row = {"seconds": seconds, "code": code, "stopwatch": float(stopwatch[1]) if stopwatch else None}
    with contextlib.suppress(FileNotFoundError):
        tuning = last_tuning(clone / "demo")
        row |= {"raced": raced_share(tuning), "recipe": written(tuning.recipe)}
        row |= {"total": tuning.total.ratio if tuning.total else None}
    return row


def _install(clone: Path, place: Path) -> contextlib.AbstractContextManager[object]:
    words = ["sh", "-c", INSTALL, "sh", f"{PIP_AFTER_S:g}", sys.executable, str(place / "venv")]
    return beside(words, clone, place / "pip.log")


def is_right(row: Row) -> bool:
    """Whether the run was fast enough, raced all techniques that apply, and kept and timed a recipe."""
    raced, applying = row.get("raced", (0, 1))
    is_kept = bool(row.get("recipe")) and row["stopwatch"] is not None and row["code"] == 0
    return is_kept and raced == applying and row["seconds"] <= MOST_S


def render(rows: dict[str, Row], head: str) -> str:
    lines = []
    for key, row in rows.items():
        raced = "{} of {}".format(*row["raced"]) if "raced" in row else ""
        figures = [f"{ratio:.2f}x" if ratio else "" for ratio in (row.get("total"), row["stopwatch"])]
        words = [key, f"{row['seconds']:.0f} s", raced, row.get("recipe") or "nothing", *figures]
        lines.append([*words, judged(is_right(row)), row["commit"], row["day"], row["processor"]])
    titles = ["run", "time:", "techniques raced:", "recipe", "total of tune:", "stopwatch:", "", "commit", "day", "on"]
    return f"""# The demonstration

{head}

{table(titles, lines)}

`make demo` in a clean clone, after `make setup`. Required: at most {MOST_S:.0f} s, all techniques that apply are raced,
a recipe is kept, and the stopwatch has timed it. {sum(map(is_right, rows.values()))} of {len(rows)} runs do so. Beside
`pip install`: {PIP_AFTER_S:.0f} s after the start, torch and the packages of the tests are installed into another
environment.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--beside-pip", type=int, default=RUNS_BESIDE_PIP, help="number of runs beside `pip install`")
    options = parser.parse_args()
    head, rows = machine(), Rows("demo_runs")
    keys = [f"run {number}" for number in range(1, options.runs + 1)]
    keys[: options.beside_pip] = [f"{key}, beside pip install" for key in keys[: options.beside_pip]]
    with tempfile.TemporaryDirectory() as name, ended_by_signals():
        clone = Path(name) / "clone"
        for number, key in enumerate(keys):
            rows.measure(key, partial(run_demo, clone, number < options.beside_pip), DEMO, ROOT / "Makefile")
            store_page("demo_runs", render(rows.stored(keys), head))
    wrong = [key for key, row in rows.stored(keys).items() if not is_right(row)]
    if wrong:
        sys.exit(f"Not as required: {', '.join(wrong)}.")


if __name__ == "__main__":
    main()
