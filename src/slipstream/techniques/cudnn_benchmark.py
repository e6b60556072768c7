"""Lets cuDNN time its convolution algorithms on the first batch of each shape and use the fastest one.

Helps convolutions on NVIDIA GPUs when shapes stay the same. Hurts when shapes vary, because each new shape is timed
again.
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
    title="cuDNN benchmark mode",
    seam="process",
    causes=("no_autotune",),
    numerics="reordered",
    memory="more",  # Faster algorithms may need more workspace.
    needs=("cuda",),
)


def applies(observation: Observation) -> Answer:
    facts, model = observation.torch, observation.model
    if observation.device != "cuda":
        return no(f"the model is on {observation.device}: cuDNN is for NVIDIA GPUs")
    if facts is not None and facts.cudnn_benchmark:
        return already("the script sets cudnn.benchmark already")
    if facts is not None and facts.deterministic:
        return no("the script asks for determinism, which excludes this option")
    if model is not None and not model.num_convolutions:
        return no("the model has no convolutions")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    import torch

    before = torch.backends.cudnn.benchmark

    def switch_on(module: torch.nn.Module) -> None:
        """Runs at the first call of a model, after the script has made its own settings."""
        if torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
            context.decline("the script asks for determinism, which excludes this option")
        elif next(module.parameters()).device.type != "cuda":
            context.decline(f"the model is on {next(module.parameters()).device.type}: cuDNN is for NVIDIA GPUs")
        else:
            torch.backends.cudnn.benchmark = True
            context.changed("cudnn.benchmark False -> True")

    def put_back() -> None:
        torch.backends.cudnn.benchmark = before

    context.on_model(switch_on)
    context.patches.on_close(put_back)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return [Edit("cudnn_benchmark", "start", None, text="torch.backends.cudnn.benchmark = True")]
