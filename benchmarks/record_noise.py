"""Records how the time of a training step of about 50 ms varies on this machine.

Several processes of the same small convnet take turns in random order, as trials do. One recording uses the default
allocator. The other recording uses the setting that tune applies first, so that the allocator keeps its memory. Writes
benchmarks/results/noise.json, which never_fooled.py reads.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from statistics import median
from typing import IO, cast

from page import RESULTS, machine
from slipstream.techniques.allocator import environment

STEP_MS = 50.0
TIMING_STEPS = 12
LEAD_IN = 1
NUM_TRIALS = 4


class Trial:
    """A process that runs the requested number of steps and answers with the milliseconds of each step."""

    def __init__(self, num_channels: int, variables: dict[str, str]) -> None:
        command = [sys.executable, __file__, "--ride", str(num_channels)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )
        self.run_block(20)  # The warm-up

    def run_block(self, num_steps: int) -> list[float]:
        orders, answers = cast("IO[str]", self.process.stdin), cast("IO[str]", self.process.stdout)
        orders.write(f"{num_steps}\n")
        orders.flush()
        return cast("list[float]", json.loads(answers.readline()))

    def close(self) -> None:
        cast("IO[str]", self.process.stdin).close()
        self.process.wait()


def serve(num_channels: int) -> None:
    """Trains in this process. Reads numbers of steps from stdin, and prints the times of the steps."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Conv2d(3, num_channels, 3, padding=1), nn.BatchNorm2d(num_channels), nn.ReLU()]
    layers += [nn.Conv2d(num_channels, num_channels, 3, padding=1), nn.BatchNorm2d(num_channels), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_channels, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))
    for line in sys.stdin:
        times_ms = []
        for _ in range(int(line)):
            start = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            times_ms.append(round((time.perf_counter() - start) * 1e3, 3))
        print(json.dumps(times_ms), flush=True)


def record(seconds: float, num_channels: int, variables: dict[str, str]) -> list[tuple[int, list[float]]]:
    """Returns the blocks in the order of time. A block is the trial and the milliseconds of each step after the
    lead-in.
    """
    timings = []
    rng = random.Random(0)
    with ExitStack() as stack:
        trials = [stack.enter_context(_closing(num_channels, variables)) for _ in range(NUM_TRIALS)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for ident in rng.sample(range(NUM_TRIALS), NUM_TRIALS):
                timings.append((ident, trials[ident].run_block(LEAD_IN + TIMING_STEPS)[LEAD_IN:]))
    return timings


class _closing:  # noqa: N801
    def __init__(self, num_channels: int, variables: dict[str, str]) -> None:
        self.trial = Trial(num_channels, variables)

    def __enter__(self) -> Trial:
        return self.trial

    def __exit__(self, *fault: object) -> None:
        self.trial.close()


def fitting_width(variables: dict[str, str]) -> int:
    """The number of channels with which a step takes about 50 ms on this machine."""
    for num_channels in (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128):
        with _closing(num_channels, variables) as trial:
            if sorted(trial.run_block(9))[4] >= STEP_MS:
                return num_channels
    return 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="the length of each recording")
    parser.add_argument("--ride", dest="num_channels", type=int, help="run as a trial (used by this script itself)")
    options = parser.parse_args()
    if options.num_channels:
        serve(options.num_channels)
        return
    named = machine()
    settings = {"laps": dict[str, str](), "steady_laps": environment("huge_pages")}
    timings = {
        name: record(options.seconds, fitting_width(variables), variables) for name, variables in settings.items()
    }
    RESULTS.mkdir(exist_ok=True)
    for name, found in timings.items():
        usual = [median(ms for who, times in found for ms in times if who == trial) for trial in range(NUM_TRIALS)]
        print(f"{name}: median step of each trial, ms:", ", ".join(f"{ms:.1f}" for ms in usual))
    (RESULTS / "noise.json").write_text(json.dumps({"machine": named, **timings}, indent=None) + "\n")


if __name__ == "__main__":
    main()
