"""What it costs to start a process: Python alone. What torch adds is told by the child that imports it."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from slipstream.records import Reading


def read_starts(num_starts: int) -> list[Reading]:
    times = []
    for _ in range(num_starts):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True, stdin=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return [Reading("process_start", statistics.median(times) * 1000, "ms", detail="python -c pass")]
