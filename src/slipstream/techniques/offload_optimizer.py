"""Keeps the optimizer's state (two numbers for every weight in Adam) in the host's memory, and brings it to the device
for the length of each update.

Helps where the state leaves too little for activations: it is away while they are alive. Hurts the time: all of the
state crosses the bus twice an update, so it pays with large batches or many accumulated ones. Same bits. Not for
weights on the CPU, whose state has nowhere else to go. Not run on a GPU yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    import torch

    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Optimizer state with the host",
    seam="optimizer",
    causes=(),
    numerics="identical",
    memory="less",
    needs=("accelerator",),
    claims=("optimizer state",),
    purpose="memory",
)
_DEVICES = ("cuda", "xpu")
_ON_HOST = "the weights are on the CPU, and their state is with the host already"


def applies(observation: Observation) -> Answer:
    if observation.device == "cpu":
        return no(_ON_HOST)
    if observation.device not in _DEVICES:
        return no(f"{observation.device} shares its memory with the host, or is not known not to")
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
            context.decline(_ON_HOST if devices <= {"cpu"} else f"weights on {', '.join(sorted(devices))}")
            return
        offloaded = Offloaded(optimizer)
        offloaded.install()
        context.patches.on_close(offloaded.remove)
        context.changed(f"the state of {type(optimizer).__name__} waits with the host between updates")

    context.on_optimizer(change)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    site = observation.optimizer.site if observation.optimizer is not None else None
    reason = "it takes hooks around every update and checkpoint: `slipstream run` with this recipe has them"
    return [Edit("offload_optimizer", "by_hand", site, reason=reason)]
