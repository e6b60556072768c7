"""Who is told what happens while a tuning runs. Tells, and is never asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.records import Verdict


class ProgressListener(Protocol):
    def racing(self, trials: Sequence[str]) -> None:
        """Who shares the baton now; nobody between heats."""
        ...

    def entering(self, trial: str) -> None:
        """It is being launched, which may take as long as the script's own start."""
        ...

    def block_done(self, trial: str, round: int) -> None: ...

    def decided(self, verdict: Verdict) -> None:
        """As soon as it is known. A later phase may still revise it; the tuning holds what stands."""
        ...

    def left(self, seconds: float) -> None:
        """Of the budget."""
        ...

    def note(self, sentence: str) -> None: ...


class SilentListener:
    """Is told everything and says nothing."""

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
