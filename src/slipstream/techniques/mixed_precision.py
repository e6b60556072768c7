"""Runs matrix products and convolutions of models in training in bf16 or fp16, and keeps weights, losses and sums in
fp32.

Helps where the device has units for these types: most GPUs since 2017, a few CPUs since 2020. Hurts on CPUs without
such units, where steps become many times slower. The check tries bf16 on a copy of the model. If the copy is more than
three times slower, the technique is not raced.

Models run under autocast only in training mode with gradients enabled, so evaluation keeps the script's own precision.
The results of models are converted back to fp32, so the script computes its losses and metrics as before. With fp16 the
loss is scaled, because small gradients would otherwise become zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.diagnose.gain import rehearsal_of
from slipstream.numbers import as_ratio, in_ms
from slipstream.records import Edit, Setting
from slipstream.records.rehearsal import HOPELESS
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import why_by_hand

if TYPE_CHECKING:
    import torch

    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Mixed precision",
    seam="module",
    causes=("full_precision",),
    numerics="approximate",
    memory="less",  # Activations take half the memory.
    claims=("precision",),
    nesting=30,
)
VALUES = ("bf16", "fp16")


def applies(observation: Observation) -> Answer:
    facts, model = observation.torch, observation.model
    if facts is not None and facts.autocast_seen:
        return no("the script uses autocast itself")
    if model is not None and "float32" not in model.dtypes:
        return already(f"the model is {' and '.join(model.dtypes)} already")
    rehearsal = rehearsal_of(observation.session, "bf16")
    if observation.device == "cpu" and rehearsal is not None and rehearsal.high * HOPELESS < 1:
        slower = as_ratio(1 / rehearsal.ratio)
        return no(
            f"a copy of the model is {slower} slower in bf16 on this CPU "
            f"({in_ms(rehearsal.then_ms)} instead of {in_ms(rehearsal.now_ms)})"
        )
    return YES


def settings(observation: Observation) -> list[Setting]:
    """Returns bf16, and for accelerators fp16 too. fp16 comes first for accelerators with fast fp16 units and without
    bf16 units."""
    facts = observation.torch
    if observation.device == "cpu":
        return ["bf16"]
    if facts is not None and facts.has_fast_fp16 and not facts.has_fast_bf16:
        return ["fp16", "bf16"]
    return ["bf16", "fp16"]


def apply(context: ApplyContext, setting: Setting) -> None:
    import torch

    from slipstream.techniques._models.autocast import Precision, Switch
    from slipstream.techniques._models.loss_scaler import LossScale

    dtype = torch.float16 if setting == "fp16" else torch.bfloat16
    switch = Switch(context, dtype)
    switch.watch_for_the_scripts_own()
    scale = LossScale(context, switch) if dtype is torch.float16 else None

    def change(module: torch.nn.Module) -> None:
        parameter = next(module.parameters())
        if not any(parameter.dtype is torch.float32 for parameter in module.parameters()):
            context.decline(f"{type(module).__name__} is not in fp32")
            return
        if scale is not None:
            scale.follow(module)
        context.wrap_call(module, Precision(switch, module, parameter.device.type, dtype, scale).call)

    context.on_model(change)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    site = observation.model.site if observation.model else None
    dtype = "float16" if setting == "fp16" else "bfloat16"
    text = f'torch.autocast("{observation.device}", dtype=torch.{dtype})'
    model, optimizer = observation.model, observation.optimizer
    several = why_by_hand(observation)
    if several or site is None or model is None or (setting == "fp16" and (optimizer is None or not model.name)):
        reason = f"{several} around forward pass and loss".lstrip()
        if setting == "fp16":
            reason += "; fp16 also needs torch.amp.GradScaler around backward, clipping and step"
        return [Edit("mixed_precision", "by_hand", site, text=f"with {text}:", reason=reason)]
    edits = [Edit("mixed_precision", "around", site, call=model.name, text=text)]
    if setting == "fp16" and optimizer is not None:
        scaler, kind = f'torch.amp.GradScaler("{observation.device}")', optimizer.class_name
        edits.append(Edit("mixed_precision", "scaler", site, call=model.name, argument=kind, text=scaler))
    return edits
