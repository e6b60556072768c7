"""Frees gradients where the script overwrites them with zeros, with `zero_grad(set_to_none=False)`. The memory is free
until the next backward pass allocates gradients again.

Helps where the forward pass needs the memory. It frees as much memory as the parameters take. Hurts only a script that
reads a gradient between zero_grad and backward, because the gradient is None there. If a backward pass does not reach a
parameter, its gradient becomes zero afterwards, as after the script's own call. Momentum and weight decay therefore
continue as in the unchanged script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Gradients freed instead of zeroed",
    seam="optimizer",
    causes=(),
    numerics="identical",
    memory="less",
    purpose="memory",
)


def applies(observation: Observation) -> Answer:
    if observation.optimizer is None:
        return no("no optimizer was seen")
    return YES  # How the script calls zero_grad is known only at the call.


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._models.zero_grad import DroppedGradients

    DroppedGradients(context).install()


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    reason = "a parameter without a gradient is then not updated, while with a zero gradient its momentum continues"
    return [Edit("set_to_none", "by_hand", None, text="optimizer.zero_grad()", reason=reason)]
