"""Computes again, in smaller and smaller pieces of the batch, what ran out of memory in the forward or backward pass of
the models that the script calls. The script does not notice; `run --survive-oom` puts it on.

Helps where most batches fit and a long one now and then does not. Hurts little otherwise: results and gradients pass
through one more operation. Not survived: what runs out elsewhere (the loss, the optimizer, copies of data), one sample
that does not fit by itself, and models that cannot be cut: batch norm in training, models that return their own loss,
that change themselves while they compute, or that the script compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    import torch

    from slipstream.techniques._core.context import ApplyContext
    from slipstream.techniques._recompute.install import Survivor

CARD = Card(
    title="Out of memory, and going on",
    seam="module",
    causes=(),
    numerics="reordered",
    memory="less",
    claims=("the model's graph",),
    is_opt_in=True,  # where the host's memory runs out for good, the system ends the process and asks nobody
    purpose="memory",
    nesting=25,  # inside autocast, which looks whether gradients are on
)


def applies(observation: Observation) -> Answer:
    if observation.model is not None and observation.model.is_compiled:
        return no("the script compiles the model, and every size of a piece would be compiled anew")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._recompute.install import Survivor

    survivors: list[Survivor] = []

    def change(module: torch.nn.Module) -> None:
        if context.is_compiled(module):
            context.decline("the script compiles the model, and every size of a piece would be compiled anew")
            return
        survivors.append(Survivor(context, module))
        context.wrap_call(module, survivors[-1].call)

    context.on_model(change)
    context.last_words.append(lambda: _said(survivors))


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    site = observation.model.site if observation.model else None
    reason = "a step that failed cannot be repeated from outside the model: slipstream run --survive-oom does it"
    return [Edit("survive_oom", "by_hand", site, text="slipstream run --survive-oom", reason=reason)]


def _said(survivors: list[Survivor]) -> str:
    num, most = sum(one.num_survived for one in survivors), max((one.most_pieces for one in survivors), default=1)
    if not num:
        return ""
    return f"survived {num} shortage{'s' * (num > 1)} of memory, with the batch in up to {most} pieces"
