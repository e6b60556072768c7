"""What a seam needs from whoever listens. Seams emit; listeners decide."""

from __future__ import annotations

from typing import Protocol

from slipstream.clock.device import DeviceMark
from slipstream.records import EventKind, Loader, Model, Optimizer, Site

# What was there when a passage was entered: the phase to go back to, the time in ns, the device's mark. A plain tuple,
# since one is made at every passage.
Token = tuple[str, int, DeviceMark | None]


class Listener(Protocol):
    is_muted: bool  # nothing is to be recorded: torch is used by us
    counts_samples: bool  # batches tell how many samples there are: nobody else needs to
    phase: str  # the phase that the script's thread is in now; the stack sampler reads it

    def enter(self, phase: str) -> Token | None:
        """None: not the script's own thread; nothing will be recorded."""
        ...

    def leave(
        self,
        token: Token | None,
        kind: EventKind,
        ident: int,
        samples: int = 0,
        num_bytes: int = 0,
        grad: bool = False,
        training: bool = False,
        pinned: bool = False,
        blocking: bool = False,
        site: int = -1,
        caller: int = -1,
        kept: bool = False,
    ) -> None:
        """The passage ended well; what is known about it as in records.Event."""
        ...

    def abandon(self, token: Token | None) -> None:
        """The passage ended in an exception of the script's own."""
        ...

    def pulse(self) -> None:
        """A place where the script may be stopped."""
        ...

    def meet(self, subject: Loader | Model | Optimizer) -> None: ...

    def place(self, site: Site | None) -> int:
        """The index of a site in the session's table."""
        ...

    def note(self, sentence: str) -> None: ...
