"""Repeats a forward or backward pass that ran out of memory, in smaller and smaller pieces of the batch. The script
gets the result of the whole batch and no exception. `run --survive-oom` switches the technique on.

Helps where most batches fit in memory and a long one sometimes does not. Hurts little otherwise, because results and
gradients only pass through one more operation.

The technique cannot help if memory runs out elsewhere (in the loss, the optimizer or a copy of data), or if a single
sample does not fit. It does not apply to models whose batch cannot be split: models with batch norm in training, models
that return their own loss, and models that change their own tensors, numbers or lists. It does not apply to models that
the script compiles either.
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
    title="Recovery from out of memory",
    seam="module",
    causes=(),
    numerics="reordered",
    memory="less",
    claims=("the model's graph",),
    is_opt_in=True,  # If the host's memory runs out, the system kills the process without an exception.
    purpose="memory",
    nesting=25,  # Inside autocast, which checks whether gradients are enabled.
)


def applies(observation: Observation) -> Answer:
    if observation.model is not None and observation.model.is_compiled:
        return no("the script compiles the model, and every size of a piece would be compiled again")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._recompute.install import Survivor

    survivors: list[Survivor] = []

    def change(module: torch.nn.Module) -> None:
        if context.is_compiled(module):
            context.decline("the script compiles the model, and every size of a piece would be compiled again")
            return
        survivors.append(Survivor(context, module))
        context.wrap_call(module, survivors[-1].call)

    context.on_model(change)
    context.last_words.append(lambda: _said(survivors))


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    site = observation.model.site if observation.model else None
    reason = "a failed step cannot be repeated from outside the model: use `slipstream run --survive-oom`"
    return [Edit("survive_oom", "by_hand", site, text="slipstream run --survive-oom", reason=reason)]


def _said(survivors: list[Survivor]) -> str:
    num, most = sum(one.num_survived for one in survivors), max((one.most_pieces for one in survivors), default=1)
    if not num:
        return ""
    return f"recovered from {num} out-of-memory error{'s' * (num > 1)}, with the batch in up to {most} pieces"
