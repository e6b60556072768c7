"""A program that keeps one or two cores busy in bursts of 1 to 60 seconds, 30% of the time, until it is ended. The seed
determines the bursts. Simulated tunings use the same bursts.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from slipstream.supervise.signals import ended_by_signals
from slipstream.testing.load_bursts import Burst, LoadBursts
from tunings import beside

HERE = Path(__file__).parent
# Each busy process ends by itself, even if this program is killed.
BUSY = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: sum(range(1000))"


def make(burst: Burst, folder: Path) -> None:
    """Keeps the cores of a burst busy for the length of the burst, from now on."""
    with ExitStack() as stack:
        busy = [sys.executable, "-S", "-c", BUSY, str(burst.end_s - burst.start_s)]
        processes = [stack.enter_context(beside(busy, folder)) for _ in range(burst.num_cores)]
        for process in processes:
            process.wait()


def command(seed: int) -> list[str]:
    return [sys.executable, str(HERE / "bursts.py"), "--seed", str(seed)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start_s, bursts = time.monotonic(), LoadBursts(options.seed)
    with ended_by_signals():
        while True:
            burst = bursts.upcoming(time.monotonic() - start_s)
            time.sleep(max(0.0, start_s + burst.start_s - time.monotonic()))
            make(burst, HERE)


if __name__ == "__main__":
    main()
