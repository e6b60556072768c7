"""Measures the time that observing adds to a step.

Blocks of one loop with and without an instrument alternate in one process. The seams are installed for each block and
then removed, so both kinds of blocks use the same memory at almost the same time. Writes
benchmarks/results/overhead.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch

from intervals import Interval, paired_interval
from loop import OUTLIER, REST, WARM, WIDTHS, Loop
from page import machine, write_page
from slipstream.records import Ending
from slipstream.trial.lifecycle import TrialSettings, start_run

WATCHING_US = 25.0
SAMPLING_SHARE = 0.03
BESIDE_MS = 5000.0
COARSE = 8  # The divisor of the number of blocks for instruments that cost ten times as much as the others
RUN = "`slipstream run` (watching)"
CHECK = "`slipstream check` (watching and sampling)"
PROFILER = "`torch.profiler` on all steps"
TRACEML = "TraceML, `traceml run` and `trace_step`"
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
Instrument = Callable[[Loop, int], float]
Result = tuple[float, dict[str, Interval]]


def bare(loop: Loop, num_steps: int) -> float:
    return loop.block(num_steps, num_warm=REST)


def observed(loop: Loop, num_steps: int, mode: str) -> float:
    trial = start_run(TrialSettings(mode=mode))  # type: ignore[arg-type]
    try:
        return loop.block(num_steps)
    finally:
        trial.leave(Ending("finished", 0, 0.0))


def profiler(loop: Loop, num_steps: int) -> float:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        return loop.block(num_steps, after=profile.step)


INSTRUMENTS: dict[str, Instrument] = {
    "bare python again (control)": lambda loop, num_steps: loop.block(num_steps),
    RUN: partial(observed, mode="run"),
    CHECK: partial(observed, mode="watch"),
}


class Partner:
    """Runs the loop with TraceML in other processes, because TraceML needs its launcher and cannot be removed again.

    The baton is passed through two pipes in `folder`.
    """

    def __init__(self, step_ms: float, folder: Path) -> None:
        for name in ("ask", "answer"):
            os.mkfifo(folder / name)
        launcher = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", "--logs-dir", str(folder / "logs")]
        command = [*launcher, __file__, "--args", "--serve", str(step_ms), "--baton", str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.ask, self.answer = (folder / "ask").open("w"), (folder / "answer").open()

    def __call__(self, loop: Loop, num_steps: int) -> float:
        print(num_steps, file=self.ask, flush=True)
        line = self.answer.readline()
        if not line:
            raise RuntimeError("the process that runs TraceML has ended")
        return float(line)

    def close(self) -> None:
        self.ask.close()
        self.process.wait(300)
        self.answer.close()


def serve(step_ms: float, folder: Path, clock: Clock) -> None:
    import traceml_ai

    traceml_ai.init(mode="auto", on_missing_aggregator="raise")
    loop = Loop(step_ms, clock)
    with (folder / "ask").open() as ask, (folder / "answer").open("w") as answer:
        for line in ask:
            seconds = loop.block(int(line), around=lambda: traceml_ai.trace_step(loop.model))
            print(seconds, file=answer, flush=True)


def measure(step_ms: float, num_rounds: int, block_ms: float, clock: Clock) -> Result:
    """Returns the milliseconds of a step without an instrument, and the microseconds that each instrument adds.

    Each block is compared with the blocks without an instrument before and after it.
    """
    loop, num_steps = Loop(step_ms, clock), max(10, round(block_ms / step_ms))
    bare_ms, added = _take_turns(loop, INSTRUMENTS, num_rounds, num_steps)
    added[CHECK] = added[CHECK].shifted(_beside(loop, round(BESIDE_MS / step_ms)))
    added |= _take_turns(loop, {PROFILER: profiler}, num_rounds // COARSE, num_steps)[1]
    # TraceML runs last, because its processes would disturb the others.
    if importlib.util.find_spec("traceml_ai") is not None:
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(Partner(step_ms, Path(folder))) as partner:
            added |= _take_turns(loop, {TRACEML: partner}, num_rounds // COARSE, num_steps)[1]
    return bare_ms, added


def _beside(loop: Loop, num_steps: int) -> float:
    """The CPU time, in µs per step, of the thread that writes the records of check.

    The thread writes twice a second. Most blocks are too short to contain a write. A step with a write is an outlier
    and is left out of its block.
    """
    trial = start_run(TrialSettings(mode="watch"))
    try:
        start = time.process_time() - time.thread_time()
        loop.block(num_steps)
        return 1e6 * (time.process_time() - time.thread_time() - start) / num_steps
    finally:
        trial.leave(Ending("finished", 0, 0.0))


def _take_turns(loop: Loop, instruments: dict[str, Instrument], num_rounds: int, num_steps: int) -> Result:
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
    return 1e3 * median(bares), {name: paired_interval(values) for name, values in added.items()}


def render(results: list[Result], num_rounds: int, head: str, clock: str) -> str:
    names = list(results[0][1])
    columns = " | ".join(f"on a step of {bare_ms:.2f} ms" for bare_ms, _ in results)
    lines = [f"| added per step | {columns} |", "|---|" + "---:|" * len(results)]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(_cell(ms, added[name]) for ms, added in results) + " |")
    missing = (
        "" if TRACEML in names else "\nTraceML is not installed here (pip install traceml-ai): its row is missing.\n"
    )
    return (
        f"# What observing adds to a step\n\n{head} Clock: {clock}.\n\n" + "\n".join(lines) + "\n"
        f"\nMedian and 95% interval (bootstrap) over {num_rounds} blocks of each ({num_rounds // COARSE} of the last "
        "two). Each block is compared with the blocks without an instrument before and after it. The first "
        f"{WARM} steps of an instrument's block are not timed, and steps longer than {OUTLIER:.0f} times the median of "
        "their block are left out. The row of check includes the CPU time of its second thread. The time that the "
        "profiler needs to collect its events at the end of a block is not counted. TraceML runs in another process, "
        "so its row includes the difference between two processes. "
        f"Allowed: {WATCHING_US:.0f} µs for run, {SAMPLING_SHARE:.0%} for check.\n{missing}"
    )


def _cell(bare_ms: float, added: Interval) -> str:
    share = added.middle / (10 * bare_ms)
    return f"{added.middle:+.1f} µs ({added.low:+.1f} to {added.high:+.1f}), {share:+.1f}%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--block-ms", type=float, default=80.0)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="use cpu on a machine that is shared with others"
    )
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--baton", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    clock = CLOCKS[options.clock]
    if options.serve is not None:
        return serve(options.serve, options.baton, clock)
    head = machine()
    results = [measure(step_ms, options.rounds, options.block_ms, clock) for step_ms in WIDTHS]
    write_page("overhead", render(results, options.rounds, head, options.clock))
    if any(added[RUN].low > WATCHING_US for _, added in results):
        sys.exit(f"run costs more than {WATCHING_US:.0f} µs a step.")
    if any(added[CHECK].low > 1e3 * SAMPLING_SHARE * bare_ms for bare_ms, added in results):
        sys.exit(f"check costs more than {SAMPLING_SHARE:.0%} of a step.")


if __name__ == "__main__":
    main()
