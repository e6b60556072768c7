"""A clock that moves only when a test moves it."""

from __future__ import annotations


class FakeClock:
    def __init__(self) -> None:
        self.time_ns = 1_000_000_000
        self.spent_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def cpu_ns(self) -> int:
        return self.spent_ns

    def advance(self, ms: float, cpu_share: float = 1.0) -> None:
        self.time_ns += int(ms * 1e6)
        self.spent_ns += int(ms * 1e6 * cpu_share)
