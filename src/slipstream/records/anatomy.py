"""The operators of one observed step: their kinds, the modules that ran them, and their FLOPs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from slipstream.records.site import Site

OperatorClass = Literal["contraction", "normalisation", "elementwise", "other"]


class Operator(msgspec.Struct, frozen=True):
    """An operator and its times in the observed step. docs/json.md shows the descriptions."""

    name: Annotated[str, Meta(description="torch's name of the operator")]  # aten::addmm
    operator_class: Annotated[
        OperatorClass, Meta(description="`contraction`, `normalisation`, `elementwise` or `other`")
    ]
    count: Annotated[int, Meta(description="calls in the observed step")]
    self_cpu_ms: Annotated[float, Meta(description="CPU time without that of the operators it calls")]
    total_cpu_ms: Annotated[float, Meta(description="CPU time with that of the operators it calls")]
    self_device_ms: Annotated[float, Meta(description="like `self_cpu_ms`, on the device; 0 on the CPU")] = 0.0
    total_device_ms: Annotated[float, Meta(description="like `total_cpu_ms`, on the device; 0 on the CPU")] = 0.0
    flops: Annotated[int, Meta(description="floating-point operations; 0: none, or not known")] = 0


class ModuleShare(msgspec.Struct, frozen=True):
    path: str  # "layers.0.attention"
    class_name: str
    forward_ms: float  # time in the forward pass, without the time of the module's children
    flops: int  # floating-point operations of the forward pass
    classes_ms: dict[str, float] = {}  # OperatorClass to ms in the forward pass
    backward_ms: float = 0.0  # time of the autograd nodes of the module's operators
    backward_flops: int = 0


class Attention(msgspec.Struct, frozen=True):
    """Hand-written softmax(q k^T) v, which a fused kernel could compute."""

    path: str
    site: Site | None
    share: float  # share of the forward pass


class Misalignment(msgspec.Struct, frozen=True):
    """A contraction with a dimension that is not a multiple of the hardware's tile size."""

    path: str
    class_name: str
    dimension: str  # "out_features"
    size: int
    wanted: int
    share: float  # share of the step's time in contractions


class TorchProfile(msgspec.Struct, frozen=True):
    """A few steps recorded by torch's own profiler, as a Chrome trace."""

    path: str  # path of the file, which ends in .gz if the file is compressed
    mark: str  # the name of an event in the profile
    mark_ns: int  # the time of that event on the trial's clock
    num_steps: int


class Anatomy(msgspec.Struct, frozen=True):
    step_ms: float  # duration of the observed step; observation slows the step down, so only shares are meaningful
    classes_ms: dict[str, float]  # OperatorClass to ms
    classes_flops: dict[str, int]
    num_operators: int  # launches in the step, forward and backward
    flops: int
    operators: list[Operator]  # most expensive first
    modules: list[ModuleShare]
    attentions: list[Attention] = []
    misalignments: list[Misalignment] = []
    padding_share: float | None = (
        None  # share of tokens that are padding, mean of several batches; None: not recognised
    )
    padding_batches: int = 1  # number of batches that padding_share is the mean of
    denormal_share: float | None = None  # share of denormal values in inputs, activations, gradients and parameters
    optimizer_ms: float = 0.0
    optimizer_operators: int = 0
