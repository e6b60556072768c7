"""What watching adds to a step. Bare and instrumented blocks of one loop alternate in one process, the seams put on and
taken off each time, so that both see the same memory and the same moment. Writes benchmarks/results/overhead.md."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from intervals import Interval, paired_interval
from loop import WARM, WIDTHS, Loop
from page import machine, write_page

from slipstream.records import Ending
from slipstream.runner.ride import RideSettings, board

WATCHING_US = 25.0
SAMPLING_SHARE = 0.03
Instrument = Callable[[Loop, int], float]


def bare(loop: Loop, num_steps: int) -> float:
    return loop.block(num_steps)


def riding(loop: Loop, num_steps: int, mode: str) -> float:
    ride = board(RideSettings(mode=mode))  # type: ignore[arg-type]
    try:
        return loop.block(num_steps)
    finally:
        ride.leave(Ending("finished", 0, 0.0))


def profiler(loop: Loop, num_steps: int) -> float:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        return loop.block(num_steps, after=profile.step)


INSTRUMENTS: dict[str, Instrument] = {
    "bare python again (control)": bare,
    "`slipstream run` (watching)": partial(riding, mode="run"),
    "`slipstream check` (watching and sampling)": partial(riding, mode="watch"),
    "`torch.profiler` on all steps": profiler,
}


class Partner:
    """TraceML cannot be taken off again: it runs in a process of its own, and blocks are passed like a baton."""

    def __init__(self, step_ms: float) -> None:
        command = [sys.executable, __file__, "--serve", str(step_ms)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, loop: Loop, num_steps: int) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{num_steps}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("block "):
                return float(line.split()[1])
        raise RuntimeError("the process that runs TraceML has ended")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def serve(step_ms: float) -> None:
    import traceml_ai  # type: ignore[import-not-found]

    traceml_ai.init(mode="auto")
    loop = Loop(step_ms)
    for line in sys.stdin:
        seconds = loop.block(int(line), around=lambda: traceml_ai.trace_step(loop.model))
        print("block", seconds, flush=True)


def measure(step_ms: float, num_rounds: int, block_ms: float) -> tuple[float, dict[str, Interval]]:
    """The bare step in ms, and µs added by each instrument, each block compared with the bare blocks beside it."""
    loop, num_steps = Loop(step_ms), max(10, round(block_ms / step_ms))
    instruments = dict(INSTRUMENTS)
    partner = Partner(step_ms) if importlib.util.find_spec("traceml_ai") else None
    if partner is not None:
        instruments["TraceML, `init` and `trace_step`"] = partner
    added: dict[str, list[float]] = {name: [] for name in instruments}
    before = bare(loop, num_steps)
    bares = [before]
    for _ in range(num_rounds):
        for name, instrument in instruments.items():
            seconds = instrument(loop, num_steps)
            behind = bare(loop, num_steps)
            added[name].append(1e6 * (seconds - (before + behind) / 2))
            before = behind
            bares.append(behind)
    if partner is not None:
        partner.close()
    return 1e3 * median(bares), {name: paired_interval(values) for name, values in added.items()}


def render(results: dict[float, tuple[float, dict[str, Interval]]], num_rounds: int, head: str) -> str:
    names = list(next(iter(results.values()))[1])
    columns = " | ".join(f"on a step of {bare_ms:.2f} ms" for bare_ms, _ in results.values())
    lines = [f"| added per step | {columns} |", "|---|" + "---:|" * len(results)]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(_cell(ms, added[name]) for ms, added in results.values()) + " |")
    missing = (
        "" if any("TraceML" in name for name in names) else "\nTraceML is not installed (pip install traceml-ai).\n"
    )
    return (
        f"# What watching adds to a step\n\n{head}\n\n" + "\n".join(lines) + "\n"
        f"\nMedian and 95% interval (bootstrap) over {num_rounds} blocks of each, every one compared with the bare "
        f"blocks before and after it; {WARM} steps at the start of a block are not timed. The profiler's own "
        "collecting at the end of a block is not counted against it, and TraceML runs without its launcher. "
        f"Allowed: {WATCHING_US:.0f} µs for run, {SAMPLING_SHARE:.0%} for check.\n{missing}"
    )


def _cell(bare_ms: float, added: Interval) -> str:
    share = added.middle / (10 * bare_ms)
    return f"{added.middle:+.1f} µs ({added.low:+.1f} to {added.high:+.1f}), {share:+.1f}%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--block-ms", type=float, default=60.0)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        return serve(options.serve)
    head = machine()
    results = {step_ms: measure(step_ms, options.rounds, options.block_ms) for step_ms in WIDTHS}
    write_page("overhead", render(results, options.rounds, head))
    slow = [added["`slipstream run` (watching)"] for _, added in results.values()]
    if any(interval.low > WATCHING_US for interval in slow):
        sys.exit(f"watching costs more than {WATCHING_US:.0f} µs a step.")


if __name__ == "__main__":
    main()
