"""The interface through which a tuning reports its progress. Listeners do not influence the tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.records import Recipe, Verdict


class ProgressListener(Protocol):
    def racing(self, trials: Sequence[str]) -> None:
        """The names of the trials in the current race; empty between races."""
        ...

    def entering(self, trial: str) -> None:
        """A trial is being started. This may take as long as the start of the script."""
        ...

    def block_done(self, trial: str, round: int) -> None: ...

    def decided(self, verdict: Verdict) -> None:
        """A verdict is known. A later phase may revise it. The returned tuning has the final verdicts."""
        ...

    def left(self, seconds: float, budget_s: float) -> None:
        """The seconds of the budget that are left, and the whole budget. The budget may grow during the tuning, for
        example when time is lost to other programs."""
        ...

    def best(self, recipe: Recipe, ratio: float) -> None:
        """The best recipe so far, and how many times as fast as the base it seems to be."""
        ...

    def waiting(self, cores: float) -> None:
        """Other programs use `cores` cores, and no trial runs meanwhile. 0.0 means that the waiting is over."""
        ...

    def note(self, sentence: str) -> None: ...


class SilentListener:
    """Ignores everything."""

    def racing(self, trials: Sequence[str]) -> None:
        pass

    def entering(self, trial: str) -> None:
        pass

    def block_done(self, trial: str, round: int) -> None:
        pass

    def decided(self, verdict: Verdict) -> None:
        pass

    def left(self, seconds: float, budget_s: float) -> None:
        pass

    def best(self, recipe: Recipe, ratio: float) -> None:
        pass

    def waiting(self, cores: float) -> None:
        pass

    def note(self, sentence: str) -> None:
        pass
