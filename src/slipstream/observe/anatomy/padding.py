"""Computes the share of padding among the tokens, where padding can be recognised: by a mask next to the tokens, by an
embedding with a padding index, or by rows that end in runs of one id. If padding cannot be recognised, the share is
None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

MAX_TENSORS = 16
_KEPT_IS_ONE = ("attention_mask", "input_mask", "decoder_attention_mask")
_PADDED_IS_TRUE = ("key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask", "encoder_padding_mask")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


class Inputs:
    """The inputs of the step's modules that can show padding."""

    def __init__(self) -> None:
        self.named: dict[str, torch.Tensor] = {}
        self.tokens: list[torch.Tensor] = []
        self.embedded: list[tuple[torch.Tensor, int]] = []


def note_inputs(inputs: Inputs, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for name, value in _named(args, kwargs):
        if type(value) is not torch.Tensor or value.dim() != 2 or len(inputs.tokens) >= MAX_TENSORS:
            continue
        if name in _KEPT_IS_ONE or name in _PADDED_IS_TRUE:
            inputs.named.setdefault(name, value)
        elif value.dtype in _INTEGERS:
            inputs.tokens.append(value)


def note_embedding(inputs: Inputs, embedding: nn.Embedding, args: tuple[Any, ...]) -> None:
    if embedding.padding_idx is None or not args or len(inputs.embedded) >= MAX_TENSORS:
        return
    if type(args[0]) is torch.Tensor and args[0].dim() == 2:
        inputs.embedded.append((args[0], embedding.padding_idx))


def _named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    yield from kwargs.items()
    for value in args:
        if isinstance(value, Mapping):
            yield from ((str(name), inner) for name, inner in value.items())
        else:
            yield "", value


def share_of_padding(inputs: Inputs) -> float | None:
    with torch.no_grad():
        for name, mask in inputs.named.items():
            share = (mask != 0).float().mean().item()
            return share if name in _PADDED_IS_TRUE else 1.0 - share
        known = [(tokens, index) for tokens, index in inputs.embedded if bool((tokens == index).any())]
        if known:
            tokens, index = max(known, key=lambda pair: pair[0].numel())
            return (tokens == index).float().mean().item()
        for tokens in inputs.tokens:
            if (found := share_of_trailing_runs(tokens)) is not None:
                return found
    return None


def share_of_trailing_runs(tokens: torch.Tensor) -> float | None:
    """Returns the share of padding if the rows have different lengths and are filled up with one id that occurs nowhere
    else."""
    num_rows, length = tokens.shape
    if num_rows < 2 or length < 4 or int(tokens.max()) - int(tokens.min()) < 2:
        return None
    pad = int(tokens[:, -1].mode().values)
    is_pad = tokens == pad
    runs = is_pad.flip(1).long().cumprod(1).sum(1)
    if int(is_pad.sum()) != int(runs.sum()):
        return None
    if int((runs >= 2).sum()) < max(1, num_rows // 4) or int(runs.min()) == int(runs.max()):
        return None
    return int(runs.sum()) / tokens.numel()
