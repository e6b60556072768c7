"""The live bytes of one observed step: by kind, by module, by the user's line, and over the step."""

from __future__ import annotations

from typing import Final

import msgspec

from slipstream.records.site import Site

# "parameters" includes buffers. "temporary" is memory that no backward pass needs. "other" was allocated outside the
# step.
KINDS: Final = ("parameters", "optimizer_state", "gradients", "inputs", "activations", "temporary", "other")


class Moment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The maximum of live bytes in one section of the step."""

    at_ms: float  # time since the step's start; observation makes the step slower
    phase: str
    num_bytes: list[int]  # bytes of each kind, in the order of KINDS


class ModuleBytes(msgspec.Struct, frozen=True):
    """The bytes that one module holds at the peak, without the modules inside it."""

    path: str  # "layers.0.attention"; "": the model itself
    class_name: str
    kinds: dict[str, int]
    output_bytes: int = 0  # bytes of the result of its last call that are live at the peak


class LineBytes(msgspec.Struct, frozen=True):
    """The bytes that one of the user's lines allocated and that are live at the peak. What the backward pass allocates
    counts for the line of the forward pass."""

    site: Site
    kinds: dict[str, int]


class Growth(msgspec.Struct, frozen=True):
    """Memory that the previous step allocated and that is still not freed at the end of this step."""

    num_bytes: int
    num_blocks: int
    site: Site | None = None  # the line that allocated most of this memory


class Footprint(msgspec.Struct, frozen=True):
    device: str
    num_samples: int  # samples in the step; 0: not known
    batch_size: int  # size of the largest batch in the step
    peak_bytes: int
    peak_ms: float
    peak_phase: str
    peak_operator: str  # the operator that allocated when the peak was reached
    peak_site: Site | None
    step_ms: float  # duration of the step, which observation makes slower
    kinds: dict[str, int]  # bytes of each kind at the peak; the sum is peak_bytes
    phases: dict[str, dict[str, int]]  # bytes of each kind at the peak of each phase
    moments: list[Moment] = []
    modules: list[ModuleBytes] = []  # largest first
    lines: list[LineBytes] = []
    growth: Growth | None = None
    capacity_bytes: int = 0  # memory available for tensors: live bytes plus free bytes; 0: not known
    reserved_bytes: int = 0  # accelerators: the most bytes that the caching allocator reserved
    split_bytes: int = 0  # accelerators: reserved bytes that are free, but in parts of segments
    unexplained_bytes: int = 0  # accelerators: allocated bytes that belong to no known tensor; part of "other"


class Remains(msgspec.Struct, frozen=True):
    """What was live when the script ran out of memory and ended."""

    kinds: dict[str, int]
    modules: list[ModuleBytes] = []
    lines: list[LineBytes] = []  # lines by live bytes, largest first
    site: Site | None = None  # the user's line whose allocation failed
    module: str = ""  # the module that was running
    # Memory in use, counted in the same way as for `--memory-limit`: the memory of the process, or on an accelerator
    # the memory of the allocator. 0: not known.
    held_bytes: int = 0
    has_batch_norm: bool = False
