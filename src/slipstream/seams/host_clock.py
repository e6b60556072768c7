"""Host time. Code that measures time takes a clock as an argument, so that tests can use a clock of their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int: ...

    def cpu_ns(self) -> int:
        """CPU time of all threads of this process."""
        ...


class HostClock:
    """The clock that measures time by default. On Linux it is CLOCK_MONOTONIC, which is the same in all processes, so
    trials and loader workers share one timeline."""

    now_ns = staticmethod(time.perf_counter_ns)
    cpu_ns = staticmethod(time.process_time_ns)
