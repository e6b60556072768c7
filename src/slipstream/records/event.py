"""Events that seams emit. Every call through a seam gives one event, which is recorded when the call ends. An event
says what happened and when. It does not say to which step it belongs."""

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
    "aside",  # work of slipstream in the script's thread, which counts for no step
    "sync",  # the host waited for the device (.item(), .cpu(), ...)
]

Phase = Literal["input", "transfer", "forward", "backward", "optimizer", "other"]
PHASES: tuple[Phase, ...] = ("input", "transfer", "forward", "backward", "optimizer", "other")


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call through a seam. `ident` is an index into the session's loaders, models or optimizers, depending on the
    kind. For transfer, saving and sync it is an index into the session's sites (-1: not known)."""

    kind: EventKind
    ident: int
    start_ns: int
    end_ns: int
    samples: int = 0  # samples in the batch (input) or in the module's first tensor (forward)
    num_bytes: int = 0  # bytes of the batch (input) or of the copy (transfer)
    cpu_ns: int = 0  # CPU time of all threads of this process during the call (input only)
    grad: bool = False  # forward: whether gradients were on
    training: bool = False  # forward: whether the module was in training mode
    pinned: bool = False  # transfer: whether the source is pinned memory
    blocking: bool = False  # transfer: whether the host waited for the copy
    site: int = -1  # forward in evaluation mode: index of the user's line in the session's sites
    caller: int = -1  # forward in evaluation mode: index of the user's line that called the function around `site`
    kept: bool = False  # input: whether a stored batch was replayed in place of a real one
    device_start_ms: float | None = None  # start of the same call on the device's clock
    device_end_ms: float | None = None
