"""The protocol through which `tune` runs trials. `supervise.race.ProcessBackend` implements it with real processes.
Tests use an implementation with a simulated clock."""

from __future__ import annotations

import math
from typing import Protocol

from slipstream.records import BlockTiming, Failure, TrialRecord, TrialSpec


class RaceBackend(Protocol):
    def enter(self, spec: TrialSpec) -> Failure | None:
        """Starts the trial and runs its warm-up alone, so that start-up, the start of workers and compilation happen
        outside timed blocks. Returns None when the trial is paused at a tick, or the failure of the trial."""
        ...

    def expect(self, spec: TrialSpec) -> None:
        """Announces the trial that enters next. The backend may start its process now, while another trial enters. The
        new process then waits at its first tick."""
        ...

    def run_block(self, trial: int, round: int, num_steps: int, lead_in: int, limit_s: float = math.inf) -> BlockTiming:
        """Passes the baton to the trial and waits until its block ends. The block ends after `num_steps`, or with the
        first step that ends later than `limit_s` after the start of the lead-in. At least one step is timed. The result
        has `failure` or `is_last` set if the trial has ended. A trial that hangs is ended and counts as failed. A trial
        without a running process (capacity 1) is started again and warmed up first."""
        ...

    def wait(self, seconds: float) -> float | None:
        """Waits while all trials are paused. Returns how many of the usable cores other programs used meanwhile, or
        None if this cannot be measured."""
        ...

    def record(self, trial: int) -> TrialRecord:
        """Returns everything that was measured of the trial so far, including its fingerprint."""
        ...

    def leave(self, trial: int) -> TrialRecord:
        """Ends the trial and removes everything it left behind. Returns its record."""
        ...

    def capacity(self) -> int:
        """Returns how many trials fit in memory at the same time. Before the base has entered, the number is an
        assumption. If the number is 1, a trial is started again for each of its turns."""
        ...

    def now_s(self) -> float:
        """Returns the time of the backend's clock, with which budgets are measured."""
        ...
