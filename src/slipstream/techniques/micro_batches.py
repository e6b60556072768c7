"""Trains on the script's whole batch in the memory of a part of it: the models that it calls run the batch in pieces
without keeping anything, the script computes its loss on the whole result, and the backward pass computes piece by
piece again.

Helps where activations fill the memory: the gradient is the full batch's whatever the loss, with class weights, padding
that is ignored, clipping and contrastive losses outside the model, and dropout drops what it would have dropped. Hurts
the time: every forward pass is made twice, small pieces keep a device less busy, and the random numbers of dropout are
handed out operator by operator. Models in which samples touch each other, as in batch norm, that return their own loss,
or that change themselves while they compute are left alone.
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
    title="The batch in pieces",
    seam="module",
    causes=(),
    numerics="reordered",
    memory="less",
    claims=("the model's graph", "recomputation"),
    purpose="memory",
    nesting=25,  # inside autocast, which looks whether gradients are on
)
VALUES = (2, 4, 8, 16, 32)


def applies(observation: Observation) -> Answer:
    if observation.model is not None and observation.model.is_compiled:
        return no("the script compiles the model, and every size of a piece would be compiled anew")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [2, 4, 8]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._recompute.install import MicroBatches

    def change(module: torch.nn.Module) -> None:
        if context.is_compiled(module):
            context.decline("the script compiles the model, and every size of a piece would be compiled anew")
        else:
            context.wrap_call(module, MicroBatches(context, module, int(setting)).call)

    context.on_model(change)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    site = observation.model.site if observation.model else None
    reason = "each with backward(), its loss weighted by its share of what the whole loss divides by; then one step"
    return [Edit("micro_batches", "by_hand", site, text=f"for part in batch.chunk({setting}):", reason=reason)]
