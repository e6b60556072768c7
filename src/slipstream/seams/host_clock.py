"""Host time. Everything that takes a time asks a clock for it, so that tests can hold time still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int: ...

    def cpu_ns(self) -> int:
        """CPU time of this process, all threads."""
        ...


class HostClock:
    """CLOCK_MONOTONIC on Linux: the same for every process of the machine, so riders and workers share a timeline."""

    now_ns = staticmethod(time.perf_counter_ns)
    cpu_ns = staticmethod(time.process_time_ns)
