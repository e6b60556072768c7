"""Lets CUDA's caching allocator grow its existing segments instead of allocating a new one for every size.

Helps where shapes vary from batch to batch. Memory then becomes fragmented: it is reserved and free, but in pieces that
are too small to use. Hurts little: in the first steps, mapping pages takes longer than allocating a whole segment.
Sharing tensors with other processes through CUDA handles needs a recent driver.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Expandable segments",
    seam="process",
    causes=(),
    numerics="identical",
    memory="less",
    needs=("cuda",),
)
_OPTION = "expandable_segments"
_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # The older and the newer name of torch's variable


def applies(observation: Observation) -> Answer:
    if observation.device != "cuda":
        return no(f"only CUDA's allocator has segments, and the model is on {observation.device}")
    if _OPTION in _options():
        return already("the environment sets expandable_segments already")
    if "backend:cudaMallocAsync" in _options():
        return no("the environment selects CUDA's own allocator, which has no segments")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def environment(setting: Setting) -> dict[str, str]:
    """Returns the variables that must be set when torch is loaded. If the user has set options, ours is appended to
    them."""
    options = _options()
    if _OPTION not in options:
        options = ",".join(filter(None, (options, f"{_OPTION}:True")))
    return dict.fromkeys(_NAMES, options)


def apply(context: ApplyContext, setting: Setting) -> None:
    """Reports whether the variables are set. Once torch is loaded, the option can no longer be changed."""
    import torch

    wanted = environment(setting)
    if not torch.cuda.is_available():
        context.decline("there is no CUDA device here")
    elif all(os.environ.get(name) == value for name, value in wanted.items()):
        context.changed(f"{_NAMES[-1]}={wanted[_NAMES[-1]]}")
    else:
        context.decline(f"{' '.join(wanted)} must be in the environment before the process starts")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    """Returns edits that set the variables in the script's environment, because torch reads them when it is loaded."""
    wanted = environment(setting)
    return [Edit("expandable_segments", "environment", None, argument=name, text=wanted[name]) for name in _NAMES]


def _options() -> str:
    return next((os.environ[name] for name in reversed(_NAMES) if os.environ.get(name)), "")
