"""The operations of one observed step: what kind they are, which module ran them, what they achieved."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.site import Site

OperatorClass = Literal["contraction", "normalisation", "elementwise", "other"]


class Operator(msgspec.Struct, frozen=True):
    name: str  # aten::addmm
    operator_class: OperatorClass
    count: int
    self_cpu_ms: float
    total_cpu_ms: float
    self_device_ms: float = 0.0
    total_device_ms: float = 0.0
    flops: int = 0


class ModuleShare(msgspec.Struct, frozen=True):
    path: str  # "layers.0.attention"
    class_name: str
    forward_ms: float  # exclusive of children
    flops: int  # of the forward: over forward_ms, what the module achieved
    classes_ms: dict[str, float] = {}  # OperatorClass to ms, forward
    backward_ms: float = 0.0  # of the autograd nodes that its operators made
    backward_flops: int = 0


class Attention(msgspec.Struct, frozen=True):
    """softmax(q k^T) v written by hand: a fused kernel could do it."""

    path: str
    site: Site | None
    share: float  # of the forward pass


class Misalignment(msgspec.Struct, frozen=True):
    """A contraction whose dimension is not a multiple that the hardware likes."""

    path: str
    class_name: str
    dimension: str  # "out_features"
    size: int
    wanted: int
    share: float  # of the step's contraction time


class TorchProfile(msgspec.Struct, frozen=True):
    """A few steps as torch's own profiler wrote them, a Chrome trace."""

    path: str  # of the file, .gz if packed
    mark: str  # the name of an event in it
    mark_ns: int  # when that was, on the ride's clock
    num_steps: int


class Anatomy(msgspec.Struct, frozen=True):
    step_ms: float  # of the observed step, under observation: only shares of it mean anything
    classes_ms: dict[str, float]  # OperatorClass to ms
    classes_flops: dict[str, int]
    num_operators: int  # launches in the step, forward and backward
    flops: int
    operators: list[Operator]  # most expensive first
    modules: list[ModuleShare]
    attentions: list[Attention] = []
    misalignments: list[Misalignment] = []
    padding_share: float | None = None  # tokens spent on padding, where padding could be recognised
    padding_batches: int = 1  # that it was seen in: its mean
    denormal_share: float | None = None  # of the values in inputs, activations, gradients, parameters
    optimizer_ms: float = 0.0
    optimizer_operators: int = 0
