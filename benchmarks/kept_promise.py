"""Does `run` keep what the table says? Tunes a workload, then times whole processes, start to end, bare and tuned by
turns, and compares their ratio with tune's. Writes benchmarks/results/kept_promise.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from near_best import GRID, Workload
from page import machine, write_page
from slipstream.testing.photographs import make_photographs

WITHIN = 0.06
LENGTHS = {"photographs": ["--epochs", "5"], "language": ["--steps", "1500"]}
LENGTHS |= {"tabular": ["--epochs", "60"], "accelerator": ["--epochs", "5"]}


def timed_s(command: list[str], folder: Path) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def keep(workload: Workload, photographs: Path, folder: Path, num_pairs: int, budget: str) -> dict[str, Any]:
    script = [*workload.script(photographs), *LENGTHS[workload.name]]
    ours = [sys.executable, "-m", "slipstream"]
    subprocess.run(
        [*ours, "tune", "--quiet", "--budget", budget, "--json", "out.json", *script], cwd=folder, check=True
    )
    total = json.loads((folder / "out.json").read_text())["total"] or {"ratio": 1.0, "low": 1.0, "high": 1.0}
    ratios = []
    for number in range(num_pairs):
        commands = [[sys.executable, *script], [*ours, "run", *script]]
        first, second = (timed_s(command, folder) for command in (commands if number % 2 else reversed(commands)))
        bare_s, tuned_s = (first, second) if number % 2 else (second, first)
        ratios.append(bare_s / tuned_s)
        print(f"{workload.name}: bare {bare_s:.1f} s, tuned {tuned_s:.1f} s", file=sys.stderr, flush=True)
    return {"table": total, "ratios": ratios, "off": median(ratios) / total["ratio"] - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(LENGTHS), action="append")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--budget", default="120s")
    options = parser.parse_args()
    head, lines, worst = machine(), [], 0.0
    with tempfile.TemporaryDirectory() as place:
        photographs = Path(place) / "photographs"
        make_photographs(photographs, 320)
        for workload in GRID:
            if options.only and workload.name not in options.only:
                continue
            folder = Path(place) / workload.name
            folder.mkdir()
            row = keep(workload, photographs, folder, options.pairs, options.budget)
            table, worst = row["table"], max(worst, abs(row["off"]))
            said = f"{table['ratio']:.2f}x ({table['low']:.2f} to {table['high']:.2f})"
            whole = ", ".join(f"{ratio:.2f}x" for ratio in row["ratios"])
            lines.append(f"| {workload.name} | {said} | {whole} | {row['off']:+.1%} |")
    write_page(
        "kept_promise",
        f"# What the table says, and what run does\n\n{head}\n\n| workload | tune's total | whole processes, bare over "
        "tuned | apart |\n|---|---:|---:|---:|\n" + "\n".join(lines) + f"\n\nAsked for: within {WITHIN:.0%}.\n",
    )
    if worst > WITHIN:
        sys.exit(f"run and the table are {worst:.1%} apart.")


if __name__ == "__main__":
    main()
