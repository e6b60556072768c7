"""Steps, blocks of steps, evaluations between steps, and the batches that loader workers built."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.site import Site

BlockKind = Literal[
    "start",  # everything before the first block of steps
    "warmup",
    "watch",  # the unchanged script
    "kept",  # stored batches are replayed, without data loading
    "drain",  # the loader is drained in a tight loop, without computation
    "dissect",  # one step under the profiler, for the anatomy; its times are not used elsewhere
]


class Block(msgspec.Struct, frozen=True):
    index: int
    kind: BlockKind
    start_ns: int
    end_ns: int
    batch_ns: list[int] = []  # drain: how long the loader took for each batch, after the prefetched batches
    loader: int = -1  # drain: the loader
    cpu_ns: int = 0  # CPU time of all threads of the script's process during the block; 0: not measured


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
    device_phases: dict[str, float] | None = None  # Phase to ms on the device's clock; adds up to the device's step
    is_first_of_epoch: bool = False  # whether an iterator was created or reset in the step
    apart_ms: float = 0.0  # time of evaluation and of slipstream's own work inside the step
    saving_ms: float = 0.0  # time spent saving; part of the phase "other"
    sync_ms: float = 0.0  # time that the host waited for the device; part of the phases in which the host waited
    host_phases: dict[str, float] | None = None  # phases on the host, if `phases` are the device's
    # By phase: how long the device may have waited for the host, at most. When the phase ended, the device had finished
    # all launched work. None: not known.
    device_idle: dict[str, float] | None = None


class Evaluation(msgspec.Struct, frozen=True):
    """An interval of validation, test or prediction, which is not part of the steps."""

    start_ns: int
    end_ns: int
    num_batches: int
    samples: int
    forward_ms: float
    input_ms: float
    grad: bool  # whether gradients were enabled, which wastes memory and time
    after_step: int
    loader: int = -1
    site: Site | None = None  # the user's line that called the model
    caller: Site | None = None  # the line of the training loop that started the evaluation, if it is another line


class Fetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One batch that a worker built. Without workers, the event of kind `input` has this information."""

    loader: int
    worker: int
    start_ns: int
    wall_ns: int
    cpu_ns: int
    num_samples: int
    drew: bool | None = None  # whether random numbers were drawn; None: not checked
