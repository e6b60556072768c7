"""Which rehearsals a script calls for, within a budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from slipstream.records import Rehearsal
from slipstream.runner.machine import count_usable_cores
from slipstream.runner.rehearsal import ModelRehearsal, fused_optimizer
from slipstream.runner.torch_facts import read_torch_facts

_DENORMAL = 1e-3
Caught = tuple[Any, tuple[Any, ...], dict[str, Any]]
Task = Callable[[float], Rehearsal | None]


def rehearse(
    caught: Caught | None, optimizers: list[Any], denormal_share: float, seconds: float
) -> tuple[list[Rehearsal], list[str]]:
    """What was measured, and a sentence for what could not be."""
    tasks: list[tuple[str, Task]] = []
    reasons: list[str] = []
    try:
        tasks += _model_tasks(*caught, denormal_share) if caught is not None else []
    except Exception as fault:  # a model that cannot be copied
        reasons.append(f"the model could not be copied to try remedies on it: {type(fault).__name__}: {fault}")
    tasks += [("fused", partial(fused_optimizer, optimizer)) for optimizer in optimizers if _could_fuse(optimizer)]
    done: list[Rehearsal] = []
    deadline = time.monotonic() + seconds
    for position, (name, task) in enumerate(tasks):
        try:
            rehearsal = task((deadline - time.monotonic()) / (len(tasks) - position))
        except Exception as fault:
            reasons.append(f"the rehearsal of {name} failed: {type(fault).__name__}: {fault}")
            continue
        if rehearsal is not None:
            done.append(rehearsal)
    return done, reasons


def _model_tasks(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], denormal_share: float
) -> list[tuple[str, Task]]:
    if hasattr(model, "_orig_mod"):
        return []  # compiled: a copy would be compiled again
    device = next(model.parameters()).device.type
    wanted: list[tuple[str, Callable[[ModelRehearsal], Task]]] = []
    if _has_default_layout(model):
        wanted.append(("channels_last", lambda copied: copied.channels_last))
    cores = max(1, int(count_usable_cores()))
    if device == "cpu" and torch.get_num_threads() != cores:
        wanted.append(("threads", lambda copied: lambda seconds: copied.threads(cores, seconds)))
    if device == "cpu" and denormal_share > _DENORMAL:
        wanted.append(("flush_denormals", lambda copied: copied.flush_denormals))
    if read_torch_facts(device).has_fast_bf16 and all(p.dtype == torch.float32 for p in model.parameters()):
        wanted.append(("bf16", lambda copied: copied.bf16))
    if not wanted:
        return []
    copied = ModelRehearsal(model, args, kwargs)
    return [(name, make(copied)) for name, make in wanted]


def _has_default_layout(model: torch.nn.Module) -> bool:
    weights = [m.weight for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.weight.shape[1] > 1]
    spatial = [weight for weight in weights if max(weight.shape[2:]) > 1]
    return bool(spatial) and not any(w.is_contiguous(memory_format=torch.channels_last) for w in spatial)


def _could_fuse(optimizer: Any) -> bool:
    return "fused" in optimizer.defaults and not optimizer.defaults["fused"]
