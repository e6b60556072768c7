"""The interface between seams and the object that listens to them. Seams emit events; listeners decide.

There are two code paths through the seams of a step. The slow path, `enter` and `leave`, works for every script. The
fast path (`Shortcut`) is for a step that passes the same four seams again and again. The fast path adds one Python
frame per seam. It touches little memory, because between two seams the training replaces the contents of the CPU
caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from slipstream.records import EventKind, Loader, Model, Optimizer, Site
from slipstream.seams.device_clock import DeviceMark

# The state when a passage was entered: the phase to restore, the time in ns, the device's mark. It is a plain tuple,
# because every passage makes one.
Token = tuple[str, int, DeviceMark | None]


class Shortcut:
    """The state that the fast path reads. It is kept small so that it fits in few cache lines."""

    __slots__ = ("due_ns", "input", "is_supplying", "long_ns", "optimizer", "phase", "thread")

    def __init__(self) -> None:
        self.thread = 0  # Ident of the thread that may take the fast path now; 0 if no thread may
        self.phase = "start"  # The listener's phase
        self.is_supplying = False  # Whether the next batch may be replaced by a substitute
        self.long_ns = 0  # A batch that is requested after this time takes the slow path.
        self.due_ns = 0  # Steps that end before this time need not be reported yet.
        # The id of the iterator that was used last, the ident of its loader, and the bytes of a batch (-1: not known)
        self.input = (0, -1, -1)
        self.optimizer = (0, -1)  # The id of the optimizer that was used last, and its ident


class Listener(Protocol):
    is_muted: bool  # Whether nothing is recorded now, because this package itself uses torch
    counts_samples: bool  # Whether samples are counted from batches, so that other seams need not count them
    phase: str  # The phase of the script's thread now. The stack sampler reads it.
    shortcut: Shortcut
    now_ns: Callable[[], int]
    # Replaces `leave` on the fast path. Takes the fields of an Event as a tuple.
    emit: Callable[[tuple[Any, ...]], None]

    def enter(self, phase: str) -> Token | None:
        """Begins a passage. Returns None if nothing is recorded, for example outside the script's own thread."""
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
        """Ends a passage that succeeded. The arguments are fields of `records.Event`."""
        ...

    def abandon(self, token: Token | None) -> None:
        """Ends a passage in which the script's own code raised an exception."""
        ...

    def bar_shortcut(self) -> None:
        """Disables the fast path after a fault in it. All later calls take the slow path."""
        ...

    def count(self) -> None:
        """Reports the steps that ended since the last call."""
        ...

    def pulse(self) -> None:
        """Marks a place where the script may be stopped."""
        ...

    def meet(self, subject: Loader | Model | Optimizer) -> None:
        """Records the facts about an object when it is first used, and again when more facts are known."""
        ...

    def place(self, site: Site | None) -> int:
        """Returns the index of a site in the session's table. Adds the site if it is new."""
        ...

    def note(self, sentence: str) -> None:
        """Adds a sentence for the user to the session, once."""
        ...
