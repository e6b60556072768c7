"""The live bytes of one observed step: by kind, by module, by the user's line, and over the step."""

from __future__ import annotations

from typing import Final

import msgspec

from slipstream.records.site import Site

# Parameters hold the buffers too; temporary is what no backward pass waits for; other is what the step did not make.
KINDS: Final = ("parameters", "optimizer_state", "gradients", "inputs", "activations", "temporary", "other")


class Moment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The most that was alive in one stretch of the step."""

    at_ms: float  # since the step's start, under observation
    phase: str
    num_bytes: list[int]  # by kind, in the order of KINDS


class ModuleBytes(msgspec.Struct, frozen=True):
    """What one module holds at the peak, without the modules inside it."""

    path: str  # "layers.0.attention"; "": the model itself
    class_name: str
    kinds: dict[str, int]
    output_bytes: int = 0  # of what its last call returned, alive at the peak


class LineBytes(msgspec.Struct, frozen=True):
    """What one line of the user's made that is alive at the peak; what backward makes counts for the forward's line."""

    site: Site
    kinds: dict[str, int]


class Growth(msgspec.Struct, frozen=True):
    """What the step before left behind, and this step did not let go of."""

    num_bytes: int
    num_blocks: int
    site: Site | None = None  # the line that made most of it


class Footprint(msgspec.Struct, frozen=True):
    device: str
    num_samples: int  # in the step; 0: could not be told
    batch_size: int  # of the largest batch in it
    peak_bytes: int
    peak_ms: float
    peak_phase: str
    peak_operator: str  # that allocated when the peak was reached
    peak_site: Site | None
    step_ms: float  # under observation
    kinds: dict[str, int]  # at the peak; adds up to it
    phases: dict[str, dict[str, int]]  # kinds at the peak of each phase
    moments: list[Moment] = []
    modules: list[ModuleBytes] = []  # most first
    lines: list[LineBytes] = []
    growth: Growth | None = None
    capacity_bytes: int = 0  # what tensors can have: now alive, and free beside it; 0: not known
    reserved_bytes: int = 0  # accelerators: what the caching allocator holds at the most
    split_bytes: int = 0  # accelerators: reserved, free, but in pieces that no whole segment is made of
    unexplained_bytes: int = 0  # accelerators: counted by the allocator, of no tensor that we know; part of other


class Remains(msgspec.Struct, frozen=True):
    """What was alive when memory ran out and the script with it."""

    kinds: dict[str, int]
    modules: list[ModuleBytes] = []
    lines: list[LineBytes] = []  # most first
    site: Site | None = None  # the user's line that asked for more
    module: str = ""  # that was being computed
    held_bytes: int = 0  # in the count of `--memory-limit`: by the process, on an accelerator what it has; 0: not known
    has_batch_norm: bool = False
