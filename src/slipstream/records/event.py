"""Events that seams emit: one event per passage through a seam, recorded when the passage ends. An event says what
happened and when. It does not say which step it belongs to."""

from __future__ import annotations

from typing import Literal

import msgspec

EventKind = Literal[
    "iterator",  # a loader's iterator was created or reset (includes the start of workers)
    "input",  # a batch was requested
    "transfer",  # host-to-device copy
    "forward",  # the outermost module was called
    "backward",
    "optimizer",
    "scheduler",
    "saving",
    "aside",  # work of slipstream in the script's thread: counts for no step
    "sync",  # the host waited for the device (.item(), .cpu(), ...)
]

Phase = Literal["input", "transfer", "forward", "backward", "optimizer", "other"]
PHASES: tuple[Phase, ...] = ("input", "transfer", "forward", "backward", "optimizer", "other")


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One passage. `ident` is an index into the session's loaders, models or optimizers, depending on the kind. For
    transfer, saving and sync it is an index into the session's sites (-1: not known)."""

    kind: EventKind
    ident: int
    start_ns: int
    end_ns: int
    samples: int = 0  # samples in the batch (input) or in the module's first tensor (forward)
    num_bytes: int = 0  # of the batch (input) or of the copy (transfer)
    cpu_ns: int = 0  # CPU time of this process during the passage, all threads (input only)
    grad: bool = False  # forward: gradients were on
    training: bool = False  # forward: the module was in training mode
    pinned: bool = False  # transfer
    blocking: bool = False  # transfer
    site: int = -1  # forward in evaluation mode: index of the user's line in the session's sites
    caller: int = -1  # the same for the user's line that called the function around it
    kept: bool = False  # input: a stored batch was replayed in place of a real one
    device_start_ms: float | None = None  # the same passage on the device's clock
    device_end_ms: float | None = None
