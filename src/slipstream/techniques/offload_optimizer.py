"""Keeps the optimizer's state (two numbers per weight in Adam) in host memory and copies it to the device for each
update.

Helps where the state leaves too little memory for activations, because the state is on the device only during the
update. Hurts the step time, because the whole state is copied to the device and back for every update. The technique
pays off with large batches or with many accumulated ones.

The bits are unchanged. The technique does not apply to weights on the CPU, whose state is in host memory anyway. It has
not been run on a GPU yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    import torch

    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Optimizer state in host memory",
    seam="optimizer",
    causes=(),
    numerics="identical",
    memory="less",
    needs=("accelerator",),
    claims=("optimizer state",),
    purpose="memory",
)
_DEVICES = ("cuda", "xpu")
_ON_HOST = "the weights are on the CPU, and their state is in host memory already"


def applies(observation: Observation) -> Answer:
    if observation.device == "cpu":
        return already(_ON_HOST)
    if observation.device not in _DEVICES:
        return no(f"{observation.device} shares its memory with the host, or may do so")
    if observation.optimizer is None:
        return no("no optimizer was seen")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._models.offload import Offloaded

    def change(optimizer: torch.optim.Optimizer) -> None:
        devices = {parameter.device.type for group in optimizer.param_groups for parameter in group["params"]}
        if not devices & set(_DEVICES):
            context.decline(_ON_HOST if devices <= {"cpu"} else f"the weights are on {', '.join(sorted(devices))}")
            return
        offloaded = Offloaded(optimizer)
        offloaded.install()
        context.patches.on_close(offloaded.remove)
        context.changed(f"the state of {type(optimizer).__name__} stays in host memory between updates")

    context.on_optimizer(change)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    site = observation.optimizer.site if observation.optimizer is not None else None
    reason = "this needs hooks around every update and checkpoint: use `slipstream run` with this recipe"
    return [Edit("offload_optimizer", "by_hand", site, reason=reason)]
