"""Measures how much later the first line of a script runs with `slipstream run` than with `python`.

The processes run one after the other and are compared in pairs. Writes benchmarks/results/startup.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from intervals import Interval, paired_interval
from page import machine, write_page

LIMIT_MS = 250.0
# CLOCK_MONOTONIC is the same clock in all processes, so the script can print when its first line ran.
SCRIPT = "import time\nprint(time.clock_gettime(time.CLOCK_MONOTONIC))\n"


def first_line_ms(command: list[str]) -> float:
    start = time.clock_gettime(time.CLOCK_MONOTONIC)
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return 1000 * (float(result.stdout) - start)


def measure(num_pairs: int) -> tuple[list[float], list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "first_line.py"
        script.write_text(SCRIPT)
        bare = [sys.executable, str(script)]
        watched = [str(Path(sys.executable).with_name("slipstream")), "run", str(script)]
        first_line_ms(bare), first_line_ms(watched)  # This fills the byte-code cache and the page cache.
        pairs = []
        for number in range(num_pairs):
            order = (bare, watched) if number % 2 == 0 else (watched, bare)
            times = {id(command): first_line_ms(command) for command in order}
            pairs.append((times[id(bare)], times[id(watched)]))
    return [bare_ms for bare_ms, _ in pairs], [watched_ms for _, watched_ms in pairs]


def render(bare: list[float], watched: list[float], added: Interval) -> str:
    middle = sorted(bare)[len(bare) // 2], sorted(watched)[len(watched) // 2]
    return (
        f"# Time to the script's first line\n\n{machine()}\n\n"
        "| | median, ms |\n|---|---:|\n"
        f"| `python train.py` | {middle[0]:.0f} |\n| `slipstream run train.py` | {middle[1]:.0f} |\n\n"
        f"Added: **{added.middle:.0f} ms**, 95% interval {added.low:.0f} to {added.high:.0f} ms, "
        f"median of {len(bare)} pairs in turn. Allowed: {LIMIT_MS:.0f} ms.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    options = parser.parse_args()
    bare, watched = measure(options.pairs)
    added = paired_interval([late - early for early, late in zip(bare, watched, strict=True)])
    write_page("startup", render(bare, watched, added))
    if added.low > LIMIT_MS:
        sys.exit(f"slipstream run starts {added.middle:.0f} ms later than python; {LIMIT_MS:.0f} ms are allowed.")


if __name__ == "__main__":
    main()
