"""Where riders race: what `tune` asks of it. The relay is one with real processes; tests have one with a clock of its
own. Knows nothing of processes itself."""

from __future__ import annotations

from typing import Protocol

from slipstream.records import BlockTiming, TrialRecord, TrialSpec

# Begins the reason of a rider that left in its warm-up because its steps took a multiple of the base's.
SLOWER = "slower:"


class RaceBackend(Protocol):
    def enter(self, spec: TrialSpec) -> str:
        """Launches it and lets it run its warm-up alone: start-up, worker start and compilation are paid here.
        Returns when it stands at a tick: "", or in one line why it is out."""
        ...

    def expect(self, spec: TrialSpec) -> None:
        """It enters next: it may be launched already, beside the one that enters now, but stands at its first tick."""
        ...

    def run_block(self, trial: int, round: int, num_steps: int, lead_in: int) -> BlockTiming:
        """Passes the baton and waits for the block's end. `failure` and `is_last` say that the rider is out; one that
        hangs is ended, and fails. A rider that is not at hand (capacity 1) is launched anew and warmed up first."""
        ...

    def record(self, trial: int) -> TrialRecord:
        """What is known of it so far, its witness included."""
        ...

    def leave(self, trial: int) -> TrialRecord:
        """Ends it; nothing of it is left behind but the record."""
        ...

    def renew(self) -> None:
        """Whatever riders have in common by luck, those that enter from now on have other luck."""
        ...

    def capacity(self) -> int:
        """How many riders memory safely holds at once, once the base has entered. 1: they take turns by relaunching."""
        ...

    def now_s(self) -> float:
        """The track's clock: budgets are kept by it."""
        ...
