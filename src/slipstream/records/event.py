"""What seams emit: one event per passage through a seam, written down when the passage ends.
Says what happened and when; decides nothing about steps."""

from __future__ import annotations

from typing import Literal

import msgspec

EventKind = Literal[
    "iterator",  # a loader's iterator was made or rewound (worker start-up lives here)
    "input",  # a batch was asked for
    "transfer",  # host-to-device copy
    "forward",  # the outermost module was called
    "backward",
    "optimizer",
    "scheduler",
    "saving",
    "aside",  # work of our own on the script's time: counts for nobody
    "sync",  # the host waited for the device (.item(), .cpu(), ...)
]

Phase = Literal["input", "transfer", "forward", "backward", "optimizer", "other"]
PHASES: tuple[Phase, ...] = ("input", "transfer", "forward", "backward", "optimizer", "other")


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One passage. `ident` is an index into the session's loaders, models or optimizers, by kind; for
    transfer, saving and sync it is an index into the session's sites (-1: not known)."""

    kind: EventKind
    ident: int
    start_ns: int
    end_ns: int
    samples: int = 0  # samples in the batch (input) or in the module's first tensor (forward)
    num_bytes: int = 0  # of the batch (input) or of the copy (transfer)
    cpu_ns: int = 0  # CPU time this process spent meanwhile, all threads (input only)
    grad: bool = False  # forward: gradients were on
    training: bool = False  # forward: the module was in training mode
    pinned: bool = False  # transfer
    blocking: bool = False  # transfer
    site: int = -1  # forward in evaluation mode: index of the user's line in the session's sites
    caller: int = -1  # and of the user's line that called the function around it
    kept: bool = False  # input: a kept batch was handed out in place of a real one
    device_start_ms: float | None = None  # the same passage on the device's own clock
    device_end_ms: float | None = None
