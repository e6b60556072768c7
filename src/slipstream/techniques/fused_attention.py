"""Replaces hand-written attention, softmax(q k^T) v, by torch's fused kernel. The fused kernel does not store the
attention weights.

Helps transformers with long sequences, where the attention weights take most of the memory and time. Hurts short
sequences a little.

Attention is replaced only if the fused kernel gives the same results and gradients on the script's own batch, apart
from rounding. The usual scaling and masks are supported: a causal or padding mask that is added or filled in. Attention
with dropout on the weights is not replaced. A row that is masked completely with minus infinity gives zeros, where the
script's own code gives NaN.
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
    title="Fused attention",
    seam="module",
    causes=(),
    numerics="reordered",
    memory="less",
    claims=("attention kernels",),
    nesting=10,
)


def applies(observation: Observation) -> Answer:
    anatomy, model = observation.session.anatomy, observation.model
    if anatomy is not None and not anatomy.attentions:
        return no("no hand-written attention was seen")
    if model is not None and model.is_compiled:
        return no("the script compiles the model, and the compiler fuses attention in its own way")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._models.attention_install import AttentionSearch

    def change(module: torch.nn.Module) -> None:
        if context.is_compiled(module):
            context.decline("the script compiles the model, and the compiler fuses attention in its own way")
        else:
            context.wrap_call(module, AttentionSearch(context, module).call)

    context.on_model(change)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    anatomy = observation.session.anatomy
    text = "torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)"
    reason = "call this instead of the matrix products and the softmax"
    sites = list(dict.fromkeys(attention.site for attention in anatomy.attentions)) if anatomy else [None]
    return [Edit("fused_attention", "by_hand", site, text=text, reason=reason) for site in sites]
