"""The interface through which a tuning reports its progress. Listeners do not influence the tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.records import Verdict


class ProgressListener(Protocol):
    def racing(self, trials: Sequence[str]) -> None:
        """The names of the trials in the current race; empty between races."""
        ...

    def entering(self, trial: str) -> None:
        """A trial is being started, which may take as long as the start of the script."""
        ...

    def block_done(self, trial: str, round: int) -> None: ...

    def decided(self, verdict: Verdict) -> None:
        """A verdict is known. A later phase may revise it. The returned tuning has the final verdicts."""
        ...

    def left(self, seconds: float) -> None:
        """The seconds of the budget that are left."""
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

    def left(self, seconds: float) -> None:
        pass

    def note(self, sentence: str) -> None:
        pass
