"""Lets fp32 matrix products run on TF32 units. These units round their inputs to ten bits of mantissa and return fp32.

Helps where an NVIDIA GPU (Ampere or newer) spends its time in fp32 products or convolutions. Hurts only precision. Some
models need all 23 bits of the mantissa, such as models of physics. Their gradients show the difference, and `tune`
compares the gradients.
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
    title="TF32 units for fp32 products",
    seam="process",
    causes=("full_precision",),
    numerics="approximate",
    precision="tf32",
    needs=("cuda",),
)


def applies(observation: Observation) -> Answer:
    facts, model = observation.torch, observation.model
    if observation.device != "cuda":
        return no(f"the model is on {observation.device}, which has no TF32 units")
    if facts is not None and not facts.has_tf32:
        return no("this GPU has no TF32 units; Ampere and newer GPUs have them")
    if facts is not None and facts.matmul_precision != "highest":
        return already("the script allows TF32 already")
    if model is not None and "float32" not in model.dtypes:
        return no("no parameter is fp32")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    import torch

    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def allow(module: torch.nn.Module) -> None:
        """Runs at the first call of a model, after the script has made its own settings."""
        parameter = next(module.parameters())
        if parameter.device.type != "cuda":
            context.decline(f"the model is on {parameter.device.type}, which has no TF32 units")
            return
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        context.changed("float32_matmul_precision highest -> high")

    def put_back() -> None:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolutions

    context.on_model(allow)
    context.patches.on_close(put_back)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return [Edit("tf32", "start", None, text='torch.set_float32_matmul_precision("high")')]
