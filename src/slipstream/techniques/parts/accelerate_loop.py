"""What a user's loop around Accelerate must be like to have its batches cut, as far as that can be seen from outside:
its code, what was prepared, and the graph of its loss. Refuses what it does not know."""

from __future__ import annotations

import gc
from types import FrameType
from typing import Any

import torch

from slipstream.seams.place import is_user_code
from slipstream.techniques.parts.draws import RefusedError
from slipstream.techniques.parts.mean_loss import compares_samples, is_known_mean, refuse_mixing, refuse_uneven


def loop_of(frame: FrameType | None) -> FrameType | None:
    """The user's frame that asks for batches; None: a framework does, which accumulates in its own way."""
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        if str(frame.f_globals.get("__name__", "")).startswith(("transformers.", "lightning.", "pytorch_lightning.")):
            return None
        frame = frame.f_back
    return frame


def refuse_loop(accelerator: Any, loop: FrameType) -> None:
    if accelerator.num_processes > 1:
        raise RefusedError(
            f"this is one of {accelerator.num_processes} ranks, and recipes are measured with one process"
        )
    if str(accelerator.distributed_type).rpartition(".")[2] not in ("NO", "MULTI_CPU"):
        raise RefusedError(f"{accelerator.distributed_type} accumulates in its own way")
    if accelerator.gradient_accumulation_steps != 1:
        raise RefusedError("the script accumulates itself: its gradient_accumulation_steps can be raised")
    if "accumulate" not in loop.f_code.co_names:
        raise RefusedError("the loop does not call accelerator.accumulate(): micro_batches is the answer there")
    models = accelerator._models
    for model in models:
        refuse_mixing(model)
    known = {id(getattr(one, "optimizer", one)) for one in accelerator._optimizers}
    learning = {id(parameter) for model in models for parameter in model.parameters()}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.optim.Optimizer) or id(thing) in known or hasattr(thing, "optimizer"):
            continue
        if any(id(parameter) in learning for group in thing.param_groups for parameter in group["params"]):
            raise RefusedError(
                f"{type(thing).__name__} was not prepared by Accelerate, and would update at every piece"
            )


def refuse_loss(loss: Any, num_samples: int) -> None:
    """From the loss of one piece alone: that of the batch is never computed."""
    if not isinstance(loss, torch.Tensor) or loss.dim() or loss.grad_fn is None:
        raise RefusedError("its loss is not one number")
    refuse_uneven(loss, num_samples)
    if compares_samples(loss, num_samples):
        raise RefusedError("its loss compares the samples of a batch with each other; micro_batches may do it")
    if not is_known_mean(loss):
        made = loss.grad_fn.name().rstrip("0123456789").removesuffix("Backward")
        raise RefusedError(
            f"its loss comes from {made}, and is not known to be a mean over samples; micro_batches may do it"
        )


def stays_within(args: tuple[Any, ...], accelerators: Any) -> bool:
    """Whether a scheduler's or an accelerator's call concerns the loop that is cut: others do as they always do."""
    owner = args[0] if args else None
    optimizer = getattr(owner, "optimizer", None)
    if isinstance(owner, torch.optim.lr_scheduler.LRScheduler) and optimizer is not None:
        prepared = [one for accelerator in accelerators for one in accelerator._optimizers]
        return any(optimizer is one or optimizer is getattr(one, "optimizer", None) for one in prepared)
    return True
