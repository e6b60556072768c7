"""Steps, the blocks that group them, evaluations, which are not part of steps, and the batches that loader workers
built."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.site import Site

BlockKind = Literal[
    "start",  # everything before the first block of steps
    "warmup",
    "watch",  # the unchanged script
    "kept",  # without data loading: stored batches are replayed
    "drain",  # without computation: the loader is drained in a tight loop
    "dissect",  # one step under the profiler, for the anatomy; its times are not used elsewhere
]


class Block(msgspec.Struct, frozen=True):
    index: int
    kind: BlockKind
    start_ns: int
    end_ns: int
    # drain only: how long each batch took to arrive once the prefetched batches were used up, and the loader
    batch_ns: list[int] = []
    loader: int = -1
    cpu_ns: int = 0  # CPU time of the script's process during the block, all threads; 0: not measured


class Step(msgspec.Struct, frozen=True):
    index: int
    block: int
    start_ns: int
    end_ns: int
    step_ms: float  # without apart_ms; on the device's timeline if that is known, because the host may run ahead of it
    phases: dict[str, float]  # Phase to ms on the same timeline; adds up to step_ms
    samples: int
    num_batches: int
    num_forwards: int
    num_backwards: int
    num_updates: int  # optimizer steps
    device_phases: dict[str, float] | None = None  # the same as `phases` if these are the device's
    is_first_of_epoch: bool = False  # an iterator was created or reset in it
    apart_ms: float = 0.0  # evaluation and work of slipstream inside it
    saving_ms: float = 0.0  # part of "other"
    sync_ms: float = 0.0  # on the host; part of the phases in which it happened
    host_phases: dict[str, float] | None = None  # if `phases` are the device's
    # By phase: how long the device may have waited for the host, at most. It had done all that was launched when the
    # phase ended. None: not known.
    device_idle: dict[str, float] | None = None


class Evaluation(msgspec.Struct, frozen=True):
    """An interval of validation, test or prediction. It is recognised and excluded from the steps."""

    start_ns: int
    end_ns: int
    num_batches: int
    samples: int
    forward_ms: float
    input_ms: float
    grad: bool  # gradients were enabled, which wastes memory and time
    after_step: int
    loader: int = -1
    site: Site | None = None  # the user's line that called the model
    caller: Site | None = None  # the line of the training loop that started it, if it is another line


class Fetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One batch that a worker built. Without workers the input event has this information."""

    loader: int
    worker: int
    start_ns: int
    wall_ns: int
    cpu_ns: int
    num_samples: int
    drew: bool | None = None  # whether random numbers were drawn; None: not checked
