"""Stores only the inputs of a model's repeated blocks and recomputes the activations inside the blocks in the backward
pass. Repeated blocks are, for example, the layers of a transformer.

Helps where activations fill the memory. With all blocks checkpointed, memory holds the activations of about one block.
Hurts the step time, because every checkpointed block runs forward twice. Dropout drops the same values in the
recomputation. Batch norm counts every batch once. Names in state dicts stay the same. Blocks that write into their
inputs are not checkpointed. Neither are blocks that receive an object that they may change, such as a cache.
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
    title="Blocks recomputed in the backward pass",
    seam="module",
    causes=(),
    numerics="identical",
    memory="less",
    claims=("recomputation",),
    purpose="memory",
    nesting=5,  # Wraps blocks, inside the techniques that wrap the whole model.
)
VALUES = ("all", "half", "quarter", "most")
LADDER = ("quarter", "half", "most", "all")  # From the least to the most recomputation
# The positions of the checkpointed blocks in each group of four.
_OF_FOUR = {"quarter": (0,), "half": (0, 2), "most": (0, 1, 2), "all": (0, 1, 2, 3)}


def applies(observation: Observation) -> Answer:
    model = observation.model
    if model is not None and model.is_compiled:
        return no("the script compiles the model, and the compiler chooses what to recompute")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return ["all", "half"]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._recompute.checkpoint_block import Checkpointed, find_blocks

    def change(module: torch.nn.Module) -> None:
        blocks = find_blocks(module)
        chosen = [block for place, block in enumerate(blocks) if place % 4 in _OF_FOUR[str(setting)]]
        if context.is_compiled(module):
            context.decline("the script compiles the model, and the compiler chooses what to recompute")
        elif not blocks:
            context.decline(f"{type(module).__name__} does not consist mostly of at least three equal blocks")
        for block in [] if context.is_compiled(module) else chosen:
            description = f"{len(chosen)} of {len(blocks)} blocks of {type(module).__name__}"
            context.wrap_call(block, Checkpointed(context, block, description).call)

    context.on_model(change)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    model = observation.model
    site = model.site if model else None
    text = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
    if setting == "all" and model is not None and model.class_module and not model.class_module.startswith("torch."):
        return [Edit("checkpointing", "checkpoint", site, argument=model.class_module, text=text)]
    named = {"half": "every second block", "quarter": "every fourth block", "most": "three of each four blocks"}
    which = named.get(str(setting), "every block")
    reason = f"around {which} of the model. Batch norm inside a block then updates its statistics twice"
    return [Edit("checkpointing", "by_hand", site, text=text, reason=reason)]
