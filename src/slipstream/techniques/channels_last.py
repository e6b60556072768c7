"""Stores images and convolution weights with the channels innermost in memory. Convolution kernels prefer this layout.

Helps convolutional networks on the CPU (oneDNN) and on tensor cores. Hurts where layers between the convolutions need
the usual layout and must copy their tensors. Tensors that leave the model have the layout that the script expects.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from slipstream.diagnose.source_hints import each_weight_turned
from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import input_edits, model_edit

if TYPE_CHECKING:
    import torch

    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Channels innermost in memory",
    seam="module",
    causes=("slow_layout",),
    numerics="reordered",
    needs_proof=True,  # Dropout draws its mask in the order of memory.
    claims=("layout of images",),
    nesting=20,
)


def applies(observation: Observation) -> Answer:
    models = observation.session.models
    if models and not any(model.num_convolutions for model in models):
        return no("the model has no convolutions")
    if models and all(model.num_planar == 0 for model in models):
        return no("the model has no 2D convolutions, and the layout exists for those only")
    if models and all(model.is_channels_last for model in models if model.num_convolutions):
        return already("the script uses this layout already")
    if observation.optimizer is not None and observation.optimizer.fused is True:
        return no("the script's fused optimizer needs weights and moments in one layout, but saved ones have another")
    if observation.device == "mps":
        return no("Apple's kernels are not faster with this layout")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    import torch

    from slipstream.techniques._models.layout import DropoutOfTheBase, Layout, convolution_weights, is_turned

    def change(module: torch.nn.Module) -> None:
        weights = convolution_weights(module)
        if not weights:
            return
        # A weight for images of one channel is in both layouts.
        if all(is_turned(weight) for weight in weights) and not all(weight.is_contiguous() for weight in weights):
            context.decline("the script uses this layout already")
            return
        context.wrap_call(module, Layout(context, module, weights, optimizers).call)

    optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
    context.on_optimizer(optimizers.add)
    context.on_model(change)
    if context.is_proof:
        functional = torch.nn.functional
        context.patches.replace(functional, "dropout", DropoutOfTheBase(functional.dropout))


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    model = observation.model
    if model is not None and not model.moves_alone:
        reason = "model.to() would fail on tensors with five dimensions: convert these modules only, and their images"
        return [
            Edit("channels_last", "by_hand", model.site, text=each_weight_turned(model.name or "model"), reason=reason)
        ]
    turned = model_edit(observation, "channels_last", "{model}.to(memory_format=torch.channels_last)")
    inputs = input_edits(observation, "channels_last", ".to(memory_format=torch.channels_last)", num_dimensions=4)
    return [turned, *inputs]
