"""Stores the state of Adam and AdamW in eight bits with torchao's optimizers. The state takes about a quarter of the
memory of fp32.

Helps where the optimizer's state fills the memory, as with large models. Hurts the accuracy of the state. The training
changes, so validate its result.

The update is compiled once for each shape of a weight. Checkpoints hold full-precision numbers and load without
torchao. The technique needs torchao and weights on a CUDA or XPU device. The state of tensors with fewer than 4096
numbers stays in fp32. The technique has not been run on a GPU yet.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Optimizer state in eight bits",
    seam="optimizer",
    causes=(),
    numerics="different",
    memory="less",
    needs=("accelerator", "torchao"),
    claims=("optimizer kernels", "optimizer state"),
    is_opt_in=True,
    purpose="memory",
)
_CLASSES = ("Adam", "AdamW")
_DEVICES = ("cuda", "xpu")
_MISSING = "torchao is not installed: pip install torchao"
_ON_HOST = "torchao's kernels are compiled for CUDA and XPU devices, and the weights are on {device}"


def applies(observation: Observation) -> Answer:
    optimizer = observation.optimizer
    if optimizer is None:
        return no("no optimizer was seen")
    if optimizer.class_name not in _CLASSES:
        return no(f"{optimizer.class_name} has no 8-bit version: only Adam and AdamW have one")
    if observation.device not in _DEVICES:
        return no(_ON_HOST.format(device=observation.device))
    if importlib.util.find_spec("torchao") is None:
        return no(_MISSING)
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._models.eight_bit import EightBit, find_classes

    if importlib.util.find_spec("torchao") is None:
        context.decline(_MISSING)
        return
    classes: dict[str, Any] = {}

    def why_not(optimizer: Any) -> str:
        """Returns why the optimizer keeps its own state, or "". Is called at the first update and not
        earlier, so that torchao, whose import takes seconds, is imported only if it is needed."""
        reason = _why_not(optimizer)
        if not reason and not classes:
            classes.update(find_classes() or {})
        return reason or ("" if classes else "this torchao has no 8-bit optimizers: install version 0.15 or newer")

    EightBit(context, classes, why_not).install()


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    optimizer = observation.optimizer
    name = optimizer.class_name if optimizer is not None else "AdamW"
    reason = "the learning rate becomes a tensor, which neither a scheduler nor the script may replace by a number"
    site = optimizer.site if optimizer is not None else None
    return [Edit("low_memory_optimizer", "by_hand", site, text=f"torchao.optim.{name}8bit(...)", reason=reason)]


def _why_not(optimizer: Any) -> str:
    if type(optimizer).__name__ not in _CLASSES:
        return f"{type(optimizer).__name__} is not torch's own class"
    for group in optimizer.param_groups:
        if group.get("amsgrad") or group.get("maximize") or group.get("capturable") or group.get("differentiable"):
            return "amsgrad, maximize, capturable and differentiable are not supported in eight bits"
        for parameter in group["params"]:
            if parameter.device.type not in _DEVICES:
                return _ON_HOST.format(device=parameter.device.type)
            if parameter.grad is not None and parameter.grad.is_sparse:
                return "the gradients are sparse"
    return ""
