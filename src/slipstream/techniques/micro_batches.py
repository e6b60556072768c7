"""Trains on the script's whole batch with the memory that a part of the batch needs. The model runs the batch in pieces
without storing activations. The script computes its loss on the whole result. The backward pass then recomputes the
model piece by piece.

Helps where activations fill the memory. The gradient is that of the full batch for every loss outside the model, also
with class weights, ignored padding or a contrastive loss. Dropout drops the same values as with the full batch. Hurts
the step time: every forward pass runs twice, a device is less busy with small pieces, and the random numbers of dropout
are recorded and assigned to the pieces.

The technique declines for models in which samples depend on each other (batch norm), and for models that return their
own loss. It also declines for models that change their own tensors, numbers or the length of a list. Other changes that
a model makes to itself are not noticed.
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
    title="Batch split into pieces",
    seam="module",
    causes=(),
    numerics="reordered",
    memory="less",
    claims=("the model's graph", "recomputation"),
    purpose="memory",
    nesting=25,  # Inside autocast, which checks whether gradients are enabled.
)
VALUES = (2, 4, 8, 16, 32)


def applies(observation: Observation) -> Answer:
    if observation.model is not None and observation.model.is_compiled:
        return no("the script compiles the model, and every size of a piece would be compiled again")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [2, 4, 8]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._recompute.install import MicroBatches

    def change(module: torch.nn.Module) -> None:
        if context.is_compiled(module):
            context.decline("the script compiles the model, and every size of a piece would be compiled again")
        else:
            context.wrap_call(module, MicroBatches(context, module, int(setting)).call)

    context.on_model(change)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    site = observation.model.site if observation.model else None
    reason = "weight each part's loss by its share of the whole loss's divisor, call backward(), then step once"
    return [Edit("micro_batches", "by_hand", site, text=f"for part in batch.chunk({setting}):", reason=reason)]
