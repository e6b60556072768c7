"""Measures what slipstream costs at sizes far above the usual ones. Writes benchmarks/results/load.md.

Four trainings (workloads/load.py) run under plain Python, `slipstream run` and `slipstream check`. The first has 64
workers, the second 20,000 parameter tensors, the third ten million samples, and the fourth a hundred thousand steps a
second. Also a synthetic session of a million steps is saved, and commands read it.

    python benchmarks/load.py [--seconds 20] [--steps 1000000] [--only workers,session]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from page import machine, write_page
from slipstream.store.sessions import save_session
from slipstream.testing.made_sessions import made_session

SCRIPT = Path(__file__).with_name("workloads") / "load.py"
KINDS = {
    "workers": "64 loader workers",
    "tensors": "20,000 parameter tensors",
    "samples": "10,000,000 samples, shuffled",
    "steps": "steps of a few microseconds",
}
SLIPSTREAM = [sys.executable, "-m", "slipstream"]


class Measured(NamedTuple):
    seconds: float
    peak_mb: float  # Peak memory of the largest process
    exit_code: int
    out: str

    @property
    def steps(self) -> str:
        found = re.search(r"^(\d+) steps$", self.out, re.MULTILINE)
        return f"{int(found[1]):,}" if found else ""


def measure(command: list[str], folder: Path) -> Measured:
    with tempfile.TemporaryFile() as output:
        start_s = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start_s
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return Measured(seconds, usage.ru_maxrss / 1024, process.returncode, output.read().decode(errors="replace"))


def training_rows(kind: str, seconds: float, folder: Path) -> list[str]:
    script = [str(SCRIPT), kind, str(seconds)]
    commands = {
        "python": [sys.executable, *script],
        "slipstream run": [*SLIPSTREAM, "run", "--no-recipe", *script],
        "slipstream check": [*SLIPSTREAM, "check", "--quiet", "--seconds", str(seconds), *script],
    }
    rows = []
    for name, command in commands.items():
        one = measure(command, folder)
        size_mb = sum(path.stat().st_size for path in folder.glob(".slipstream/sessions/*")) / 1e6
        watched = re.search(r"([\d,]+) (?:\w+ )?steps", one.out) if name == "slipstream check" else None
        steps = f"{watched[1]} watched" if watched else one.steps
        session = f"{size_mb:.1f}" if name == "slipstream check" else ""
        cells = (KINDS[kind], f"`{name}`", one.exit_code, steps, f"{one.seconds:.1f}", f"{one.peak_mb:,.0f}", session)
        rows.append(f"| {' | '.join(map(str, cells))} |")
        sys.stderr.write(rows[-1] + "\n")
    return rows


def session_rows(num_steps: int, folder: Path) -> list[str]:
    start_s = time.perf_counter()
    path = save_session(made_session(num_steps=num_steps), folder)
    size = f"{path.stat().st_size / 1e6:,.0f}"
    rows = [f"| making and saving it | 0 | {time.perf_counter() - start_s:.1f} | | {size} |"]
    commands = (
        ("history",),
        ("report", "--quiet"),
        ("report", "--json", "session.json"),
        ("report", "--html", "page.html", "--no-open"),
        ("report", "--trace", "trace.json.gz"),
        ("report", "--share", "shared.msgpack"),
    )
    for words in commands:
        one = measure([*SLIPSTREAM, *words], folder)
        written = folder / words[2] if len(words) > 2 else None
        size = f"{written.stat().st_size / 1e6:,.0f}" if written is not None and written.is_file() else ""
        rows.append(f"| `{' '.join(words)}` | {one.exit_code} | {one.seconds:.1f} | {one.peak_mb:,.0f} | {size} |")
        sys.stderr.write(rows[-1] + "\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join([*KINDS, "session"]))
    options = parser.parse_args()
    wanted = options.only.split(",")
    lines = [
        "# Load",
        "",
        "The cost of slipstream for trainings and sessions that are much larger than usual. Made by "
        "`python benchmarks/load.py`.",
        "",
        machine(),
        "",
    ]
    with tempfile.TemporaryDirectory() as place:
        os.environ["SLIPSTREAM_CACHE"] = os.path.join(place, "cache")
        rows: list[str] = []
        for kind in KINDS:
            if kind in wanted:
                folder = Path(place, kind)
                folder.mkdir()
                rows += training_rows(kind, options.seconds, folder)
        if rows:
            lines += [
                f"Each training takes {options.seconds:g} s after its first batch.",
                "Memory is that of the largest process.",
                "",
                "| training | command | exit code | steps | seconds | MB | session, MB |",
                "|---|---|---|---|---|---|---|",
                *rows,
                "",
            ]
        if "session" in wanted:
            folder = Path(place, "session")
            folder.mkdir()
            lines += [
                f"A session of {options.steps:,} steps:",
                "",
                "| command | exit code | seconds | MB | written, MB |",
                "|---|---|---|---|---|",
                *session_rows(options.steps, folder),
            ]
    write_page("load", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
