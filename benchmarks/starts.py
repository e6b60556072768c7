"""Measures how long trials take to start, from launch to the end of the warm-up, on real scripts.

Compares three ways to start trials: one after the other, two at the same time, and forked from a process that has
imported torch. Tune forks trials on a CPU. Writes benchmarks/results/starts.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from near_best import GRID
from page import machine, write_page
from slipstream.records import TrialSpec
from slipstream.supervise.race import ProcessBackend
from slipstream.testing.photographs import make_photographs
from slipstream.testing.simulated_tunings import BESIDE, COLD_START_S, START_S

NUM_TRIALS = 4


def start_s(script: list[str], is_side_by_side: bool, may_fork: bool = False) -> float:
    """Starts trials and returns the seconds for each trial after the base."""
    with ProcessBackend(script, may_fork=may_fork) as process_backend:
        specs = [TrialSpec(ident, "candidate" if ident else "base") for ident in range(NUM_TRIALS + 1)]
        _enter(process_backend, specs[0])
        began_s = time.monotonic()
        for spec, following in zip(specs[1:], [*specs[2:], None], strict=True):
            if is_side_by_side and following is not None:
                process_backend.expect(following)
            _enter(process_backend, spec)
        return (time.monotonic() - began_s) / NUM_TRIALS


def _enter(process_backend: ProcessBackend, spec: TrialSpec) -> None:
    failure = process_backend.enter(spec)
    if failure:
        raise RuntimeError(str(failure))


def foreseen(beside: float) -> float:
    """The time per start on the simulated backend, divided by the time of a start alone."""
    total = done = 0.0
    for _ in range(NUM_TRIALS):
        took = 1.0 - done
        total, done = total + took, beside * took
    return total / NUM_TRIALS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    head, lines, shares = machine(), [], []
    with tempfile.TemporaryDirectory() as folder:
        photographs = Path(folder)
        make_photographs(photographs, 320)
        for workload in GRID:
            script = workload.script(photographs)
            ways = [
                (start_s(script, False), start_s(script, True), start_s(script, True, may_fork=True))
                for _ in range(repeats)
            ]
            own = [beside / alone for alone, beside, _ in ways]
            shares += own
            alone_s, beside_s, forked_s = (median(times) for times in zip(*ways, strict=True))
            told = ", ".join(f"{share:.2f}" for share in own)
            fork_told = ", ".join(f"{forked / alone:.2f}" for alone, _, forked in ways)
            times = f"{alone_s:.1f} s | {beside_s:.1f} s | {told} | {forked_s:.1f} s | {fork_told}"
            lines.append(f"| {workload.name} | {times} |")
    page = f"""# Starts one by one, side by side, and forked

{head}

{NUM_TRIALS} trials after the base, each with an empty recipe, from launch to the end of the warm-up; medians of
{repeats} runs, the three ways in turns. *Forked*: side by side, from a process that imported torch before the base
started; what remains is the beginning of the script and the five steps of the warm-up. The shares are relative to one
by one, for each run.

| script | one by one, each | side by side, each | share | forked, each | share |
|---|---:|---:|---|---:|---|
"""
    page += (
        "\n".join(lines)
        + f"""

The median share is {median(shares):.2f}. never_fooled.py assumes that a trial does {BESIDE:.0%} of its start while
another one starts, which gives a share of {foreseen(BESIDE):.2f}. It assumes that a forked trial starts in
{START_S:g} s, or {foreseen(BESIDE) * START_S:.1f} s each side by side, and one that is not forked in
{COLD_START_S:g} s.
"""
    )
    write_page("starts", page)


if __name__ == "__main__":
    main()
