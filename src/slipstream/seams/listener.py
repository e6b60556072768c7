"""What a seam needs from whoever listens. Seams emit; listeners decide.

There are two ways through the seams of a step. The long way, `enter` and `leave`, holds for every script. The shortcut
is for the same four passages over and over: one frame each, and little memory touched, since the training has filled
the caches with its own in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from slipstream.records import EventKind, Loader, Model, Optimizer, Site
from slipstream.seams.device_clock import DeviceMark

# What was there when a passage was entered: the phase to go back to, the time in ns, the device's mark. A plain tuple,
# since one is made at every passage.
Token = tuple[str, int, DeviceMark | None]


class Shortcut:
    """All that the shortcut looks at: few enough to lie side by side."""

    __slots__ = ("due_ns", "input", "is_supplying", "long_ns", "optimizer", "phase", "thread")

    def __init__(self) -> None:
        self.thread = 0  # who may take it now; 0: nobody
        self.phase = "start"  # the listener's own
        self.is_supplying = False  # the next batch may be another than the loader's own
        self.long_ns = 0  # a batch that is asked for later goes the long way, once
        self.due_ns = 0  # until then nobody has to be told of a step
        self.input = (0, -1, -1)  # the iterator asked last, its loader, and what a batch weighs if that is known
        self.optimizer = (0, -1)  # the one met last, and its ident


class Listener(Protocol):
    is_muted: bool  # nothing is to be recorded: torch is used by us
    counts_samples: bool  # batches tell how many samples there are: nobody else needs to
    phase: str  # the phase that the script's thread is in now; the stack sampler reads it
    shortcut: Shortcut
    now_ns: Callable[[], int]
    emit: Callable[[tuple[Any, ...]], None]  # the shortcut's `leave`: an Event as it lies on the wire

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

    def bar_shortcut(self) -> None:
        """It failed: from now on everyone goes the long way."""
        ...

    def count(self) -> None:
        """Whoever waits for steps is told of those that have gathered."""
        ...

    def pulse(self) -> None:
        """A place where the script may be stopped."""
        ...

    def meet(self, subject: Loader | Model | Optimizer) -> None: ...

    def place(self, site: Site | None) -> int:
        """The index of a site in the session's table."""
        ...

    def note(self, sentence: str) -> None: ...
