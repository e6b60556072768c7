"""What a loader's worker shares with nobody: after a fork nothing at first, then every page that it wrote to. Read by
the worker itself, after a batch and seldom: the kernel walks over all of its memory."""

from __future__ import annotations

import time
from pathlib import Path

from slipstream.observe.recorder import Recorder
from slipstream.records import Memory

_ROLLUP = Path("/proc/self/smaps_rollup")
_FIRST_BATCHES = (1, 2)
_LEAST_S = 0.5  # between two readings
_COSTS = 50  # times what a reading takes, at least: two hundredths of the worker's time


class PrivateGauge:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._num_batches = 0
        self._next_s = 0.0
        self._read_at = 0  # batches

    def at_batch(self) -> None:
        self._num_batches += 1
        if self._num_batches in _FIRST_BATCHES or time.monotonic() >= self._next_s:
            self._read()

    def at_end(self) -> None:
        if self._num_batches > self._read_at:
            self._read()

    def _read(self) -> None:
        start_s = time.monotonic()
        held = private_bytes()
        end_s = time.monotonic()
        self._next_s = end_s + max(_LEAST_S, _COSTS * (end_s - start_s))
        if held is None:
            self._next_s = float("inf")
            return
        self._read_at = self._num_batches
        self._recorder.remember(Memory(self._num_batches, self._recorder.clock.now_ns(), held, 0))


def private_bytes() -> int | None:
    """Pages that this process alone has written; None where the system does not tell."""
    try:
        lines = _ROLLUP.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty:")), None)
