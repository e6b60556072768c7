"""Stores the token inputs of a model in some batches of the trial, so that the share of padding does not depend on the
one dissected step. Copies small integer inputs and masks, and computes their share of padding after the dissected
step."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.seams.modules.module import ModuleSeam

MOST_BATCHES = 12
_INTERVAL_NS = 250_000_000
_FIRST_LOOKS = 3  # if this many batches contain no tokens, the search ends
_MAX_VALUES = 1 << 20  # maximum number of values of one tensor

Kept = tuple[dict[str, torch.Tensor], list[torch.Tensor], list[int]]


class Tokens:
    def __init__(self, modules: ModuleSeam) -> None:
        self._modules = modules
        self._kept: list[Kept] = []
        self._num_looks = 0
        self._looked_ns = 0

    def at_step(self, now_ns: int) -> None:
        """Arranges that the next call of a model in training mode is inspected, if the interval has passed and no other
        code listens to calls."""
        is_over = len(self._kept) >= MOST_BATCHES or (self._num_looks >= _FIRST_LOOKS and not self._kept)
        if is_over or now_ns - self._looked_ns < _INTERVAL_NS or self._modules.call_listener is not None:
            return
        self._looked_ns = now_ns
        self._modules.observe_calls(self)

    def on_call(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not model.training:
            return
        self._modules.observe_calls(None)
        self._num_looks += 1
        try:
            self._keep(model, args, kwargs)
        except Exception:  # unusual inputs, or no memory: the seam must not fail, and nothing else depends on this
            self._num_looks, self._kept = _FIRST_LOOKS, []

    def _keep(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from slipstream.observe.anatomy.padding import Inputs, note_inputs

        inputs = Inputs()
        note_inputs(inputs, args, kwargs)
        if any(tensor.numel() > _MAX_VALUES for tensor in (*inputs.named.values(), *inputs.tokens)):
            return
        if inputs.named or inputs.tokens:
            layers = (layer for layer in model.modules() if isinstance(layer, torch.nn.Embedding))
            fillers = list(dict.fromkeys(layer.padding_idx for layer in layers if layer.padding_idx is not None))
            named = {name: tensor.detach().clone() for name, tensor in inputs.named.items()}
            self._kept.append((named, [tensor.detach().clone() for tensor in inputs.tokens], fillers))

    def shares_of_padding(self) -> list[float]:
        """Returns the share of padding for each batch that differs from the batches before it. The share of a batch in
        which padding cannot be recognised is 0."""
        from slipstream.observe.anatomy.padding import Inputs, share_of_padding

        shares: list[float] = []
        for at, (named, tokens, fillers) in enumerate(self._kept):
            if any(_is_same(self._kept[at], earlier) for earlier in self._kept[:at]):
                continue
            inputs = Inputs()
            inputs.named, inputs.tokens = named, tokens
            inputs.embedded = [(one, filler) for one in tokens for filler in fillers]
            shares.append(share_of_padding(inputs) or 0.0)
        return shares


def _is_same(one: Kept, other: Kept) -> bool:
    """Whether both are the same batch. This happens if the script trains on one batch repeatedly, or if the batch was
    replayed."""
    mine, theirs = [*one[0].values(), *one[1]], [*other[0].values(), *other[1]]
    return len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))
