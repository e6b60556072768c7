"""Drops gradients where the script overwrites them with zeros: zero_grad(set_to_none=False) gives their memory back
until the next backward pass makes them anew.

Helps where the forward pass needs the memory: by the size of the parameters. Hurts nothing that is known; a script that
reads a gradient between zero_grad and backward finds none. Parameters that a backward pass leaves out have zeros again
after it, as they would have had, so that momentum and weight decay go on alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Gradients dropped, not zeroed",
    seam="optimizer",
    causes=(),
    numerics="identical",
    memory="less",
    purpose="memory",
)


def applies(observation: Observation) -> Answer:
    if observation.optimizer is None:
        return no("no optimizer was seen")
    return YES  # how the script calls zero_grad is seen when it does


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._models.zero_grad import DroppedGradients

    DroppedGradients(context).install()


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    reason = "a parameter that a step leaves out would then not be updated at all, where zeros let momentum go on"
    return [Edit("set_to_none", "by_hand", None, text="optimizer.zero_grad()", reason=reason)]
