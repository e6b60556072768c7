"""Measures the private memory of a loader's worker. After a fork the private memory is empty, and it grows by every
page that the worker writes to. The worker itself reads the size after some of its batches and at its end. Readings are
rare, because the kernel has to scan all of the worker's memory for each of them."""

from __future__ import annotations

import time
from pathlib import Path

from slipstream.observe.message_queue import MessageQueue
from slipstream.records import Memory
from slipstream.seams.host_clock import Clock

_ROLLUP = Path("/proc/self/smaps_rollup")
_FIRST_BATCHES = (1, 2)
_LEAST_S = 0.5  # between two readings
_COSTS = 50  # minimum interval, as a multiple of the duration of a reading: at most 2% of the worker's time


class PrivateGauge:
    def __init__(self, queue: MessageQueue, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._num_batches = 0
        self._next_s = 0.0
        self._read_at = 0  # number of batches at the last reading

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
        self._queue.add_memory(Memory(self._num_batches, self._clock.now_ns(), held, 0))


def private_bytes() -> int | None:
    """Returns the bytes of the pages that only this process has written, or None where the system does not report
    them."""
    try:
        lines = _ROLLUP.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty:")), None)
