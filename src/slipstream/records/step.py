"""Steps, the blocks they are grouped in, evaluations kept apart from them, and what loader workers did meanwhile."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.site import Site

BlockKind = Literal[
    "start",  # everything before the first block of steps
    "warmup",
    "watch",  # the script as it is
    "kept",  # data were free: kept batches handed out again
    "drain",  # compute was free: the loader emptied in a tight loop
    "dissect",  # one step under the profiler, for the anatomy; its times count nowhere else
]


class Block(msgspec.Struct, frozen=True):
    index: int
    kind: BlockKind
    start_ns: int
    end_ns: int
    # drain only: how long each batch took to arrive once the buffers were empty, and the CPU time of this process
    batch_ns: list[int] = []
    loader: int = -1
    cpu_ns: int = 0  # CPU time of the rider's own process over the block, all threads; 0: not measured


class Step(msgspec.Struct, frozen=True):
    index: int
    block: int
    start_ns: int
    end_ns: int
    step_ms: float  # end - start, less what was kept apart as evaluation
    phases: dict[str, float]  # Phase to ms on the host; adds up to step_ms
    samples: int
    num_batches: int
    num_forwards: int
    num_backwards: int
    num_updates: int  # optimizer steps
    device_phases: dict[str, float] | None = None  # on the device's clock; adds up to the step there
    is_first_of_epoch: bool = False  # an iterator was made or rewound in it
    apart_ms: float = 0.0  # evaluation inside it
    saving_ms: float = 0.0  # part of "other"
    sync_ms: float = 0.0  # part of whichever phase it fell into


class Evaluation(msgspec.Struct, frozen=True):
    """A stretch of validation, test or prediction, recognised and kept apart from the steps."""

    start_ns: int
    end_ns: int
    num_batches: int
    samples: int
    forward_ms: float
    input_ms: float
    grad: bool  # gradients were on: memory and time for nothing
    after_step: int
    loader: int = -1
    site: Site | None = None  # the user's line that called the model
    caller: Site | None = None  # the line of the training loop that started it, where that is another


class Fetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One batch built by a worker. Without workers the input event itself tells."""

    loader: int
    worker: int
    start_ns: int
    wall_ns: int
    cpu_ns: int
    num_samples: int
    drew: bool | None = None  # random numbers; None: not looked at
