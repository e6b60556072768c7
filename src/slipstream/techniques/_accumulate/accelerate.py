"""Gradient accumulation in a loop that uses Accelerate's accumulate().

Every batch of the training loader is cut into pieces, and Accelerate's gradient state gets the number of pieces.
Whatever the loop does once per batch (clip gradients, step a scheduler, zero gradients) happens once per batch.

This module decides whether a loop can be changed in this way. It inspects the loop's code, the prepared objects and the
graph of the loss. It declines whatever it does not know. A loss that cannot be combined from pieces is detected at the
first piece, and that piece is discarded.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from slipstream.seams.nested import tensors_of
from slipstream.seams.rng_state import RngState, default_generators
from slipstream.seams.user_code import is_user_code
from slipstream.techniques._accumulate.loss_reduction import (
    compares_samples,
    is_known_mean,
    refuse_mixing,
    refuse_uneven,
)
from slipstream.techniques._recompute.module_snapshot import ModuleSnapshot
from slipstream.techniques._recompute.record_random import RefusedError
from slipstream.techniques._recompute.split_batch import PLAIN, Cut, bounds, filled, frame_of, others_in

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext


def loop_of(frame: FrameType | None) -> FrameType | None:
    """Returns the user's frame that requests batches. Returns None if a framework requests the batches, because a
    framework accumulates in its own way."""
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
        raise RefusedError("the script accumulates gradients already: raise its gradient_accumulation_steps instead")
    if "accumulate" not in loop.f_code.co_names:
        raise RefusedError("the loop does not call accelerator.accumulate(): try micro_batches instead")
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
                f"{type(thing).__name__} was not prepared by Accelerate, and would update after every piece"
            )


def refuse_loss(loss: Any, num_samples: int) -> None:
    """Raises RefusedError unless the losses of pieces can be averaged. The graph of one piece's loss decides this."""
    if not isinstance(loss, torch.Tensor) or loss.dim() or loss.grad_fn is None:
        raise RefusedError("the loss is not one number")
    refuse_uneven(loss, num_samples)
    if compares_samples(loss, num_samples):
        raise RefusedError("the loss compares the samples of a batch with each other; micro_batches may apply")
    if not is_known_mean(loss):
        made = loss.grad_fn.name().rstrip("0123456789").removesuffix("Backward")
        raise RefusedError(
            f"the loss comes from {made}, and is not known to be a mean over samples; micro_batches may apply"
        )


def stays_within(args: tuple[Any, ...], accelerators: Any) -> bool:
    """Whether a call of a scheduler or an accelerator belongs to the loop whose batches are cut. Other calls are not
    changed."""
    owner = args[0] if args else None
    optimizer = getattr(owner, "optimizer", None)
    if isinstance(owner, torch.optim.lr_scheduler.LRScheduler) and optimizer is not None:
        prepared = [one for accelerator in accelerators for one in accelerator._optimizers]
        return any(optimizer is one or optimizer is getattr(one, "optimizer", None) for one in prepared)
    return True


MODULE = "accelerate.accelerator"


class _Piece(msgspec.Struct):
    """The piece that the script is working on."""

    num_samples: int
    share: float  # Share of the batch's samples that the piece holds
    is_first: bool
    is_last: bool
    num_backward: int = 0


class InAccelerate:
    def __init__(self, context: ApplyContext, num_pieces: int) -> None:
        self._context = context
        self._num_pieces = num_pieces
        self._accelerators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._piece: _Piece | None = None
        self._is_proved = False  # Whether the loss was found to be a mean
        self._is_off = False
        self.is_used = False

    def install(self, module: ModuleType) -> None:
        patches = self._context.patches
        accelerator: Any = vars(module)["Accelerator"]
        shard: Any = sys.modules["accelerate.data_loader"].DataLoaderShard
        optimizer: Any = sys.modules["accelerate.optimizer"].AcceleratedOptimizer
        schedulers = torch.optim.lr_scheduler.LRScheduler
        patches.around(accelerator, "__init__", "accumulation.accelerator", None, self._after_init)
        patches.replace(shard, "__iter__", self._wrap_iteration(shard.__iter__))
        patches.replace(accelerator, "backward", self._wrap_backward(accelerator.backward))
        patches.replace(optimizer, "zero_grad", self._wrap_zero_grad(optimizer.zero_grad))
        patches.replace(torch.nn.Module, "zero_grad", self._wrap_zero_grad(torch.nn.Module.zero_grad))
        patches.replace(schedulers, "step", self._once_a_batch(schedulers.step, lambda *args, **kwargs: None))
        for owner in (accelerator, torch.nn.utils):
            norm, value = owner.clip_grad_norm_, owner.clip_grad_value_
            patches.replace(owner, "clip_grad_norm_", self._once_a_batch(norm, _norm))
            patches.replace(owner, "clip_grad_value_", self._once_a_batch(value, lambda *args, **kwargs: None))

    def _after_init(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._accelerators.add(args[0])

    # --- batches ----------------------------------------------------------------------------------------------------

    def _wrap_iteration(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterate(shard: Any) -> Any:
            accelerator = None
            if not self._is_off:
                try:
                    accelerator = self._find(shard)
                except RefusedError as refusal:
                    self._refuse(str(refusal))
                except Exception as fault:
                    self._refuse(f"{type(fault).__name__}: {fault}")
            return original(shard) if accelerator is None else self._pieces(shard, original(shard), accelerator)

        return iterate

    def _find(self, shard: Any) -> Any:
        """Returns the accelerator of a loop that trains from this loader, or None if the loop does not train."""
        known = [one for one in self._accelerators if any(shard is loader for loader in one._dataloaders)]
        loop = loop_of(sys._getframe(2))
        if not known or loop is None or not torch.is_grad_enabled():
            return None
        if not any(model.training for model in known[0]._models):
            return None
        self.is_used = True
        refuse_loop(known[0], loop)
        return known[0]

    def _pieces(self, shard: Any, batches: Iterator[Any], accelerator: Any) -> Iterator[Any]:
        state = accelerator.gradient_state
        previous = {name: state.plugin_kwargs.get(name) for name in ("num_steps", "adjust_scheduler")}
        # A scheduler that was created for a number of batches would otherwise count pieces.
        state.plugin_kwargs.update(num_steps=self._num_pieces, adjust_scheduler=False)
        try:
            for whole in batches:
                is_end = shard.end_of_dataloader
                for piece, part in self._cut(whole):
                    # accumulate() adds one and checks whether the sum is a multiple of the number of steps.
                    accelerator.step = self._num_pieces - 1 if piece.is_last else 0
                    shard.end_of_dataloader = is_end and piece.is_last
                    self._piece = piece
                    yield from self._yield_piece(part, accelerator)
                    if self._is_off:
                        break
                self._piece = None
                if self._is_off:  # Continue with the whole batch.
                    state.plugin_kwargs.update(previous)
                    shard.end_of_dataloader = is_end
                    yield whole
        finally:
            self._piece = None
            state.plugin_kwargs.update(previous)

    def _yield_piece(self, part: Any, accelerator: Any) -> Iterator[Any]:
        if self._is_proved:
            yield part
            return
        snapshots = [ModuleSnapshot(model).__enter__() for model in accelerator._models]
        rng_state = RngState(default_generators(accelerator.device.type))
        yield part
        if not self._is_proved and not self._is_off:
            self._refuse("the loop does not call accelerator.backward(), so the pieces cannot be weighted")
        if self._is_off:
            for snapshot in snapshots:
                snapshot.rewind()
            rng_state.restore()
            for model in accelerator._models:
                model.zero_grad(set_to_none=True)

    def _cut(self, whole: Any) -> list[tuple[_Piece, Any]]:
        if self._is_off:
            return []
        tensors, frame = tensors_of(whole), frame_of(whole)
        try:
            cut = Cut(tensors)
        except RefusedError as refusal:
            self._refuse(str(refusal))
            return []
        num = cut.length(tensors) if any(cut.is_cut) else 0
        strange = [one for one in others_in(whole) if not isinstance(one, PLAIN) or isinstance(one, (str, bytes))]
        if not num or strange or any(one.dim() and not is_cut for one, is_cut in zip(tensors, cut.is_cut, strict=True)):
            self._refuse("a batch does not consist of tensors with one row per sample")
            return []
        spans = bounds(num, self._num_pieces)
        self._context.changed(
            f"batches of {num} in {len(spans)} pieces, gradient_accumulation_steps 1 -> {self._num_pieces}"
        )
        return [
            (
                _Piece(stop - start, (stop - start) / num, start == 0, stop == num),
                filled(frame, cut.piece(tensors, start, stop)),
            )
            for start, stop in spans
        ]

    def _refuse(self, reason: str) -> None:
        self._is_off = True
        self._context.decline(reason)

    # --- what the loop does with a piece ----------------------------------------------------------------------------

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(accelerator: Any, loss: Any, **kwargs: Any) -> Any:
            piece = self._piece
            if piece is None:
                return original(accelerator, loss, **kwargs)
            if not self._is_proved and not self._is_off:
                try:
                    refuse_loss(loss, piece.num_samples)
                    self._is_proved = True
                except RefusedError as refusal:
                    self._refuse(str(refusal))
            if self._is_off:
                return None  # This piece is discarded, and the whole batch comes next.
            piece.num_backward += 1
            factor = self._num_pieces * piece.share
            return original(accelerator, loss if factor == 1.0 else loss * factor, **kwargs)

        return backward

    def _wrap_zero_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a zero_grad that zeroes gradients only before the first backward pass of a batch or after the last
        one. Between these passes the gradients of other pieces are present."""

        def zero_grad(owner: Any, set_to_none: bool | None = None) -> Any:
            piece = self._piece
            if piece is None or (piece.is_last and piece.num_backward):
                return original(owner) if set_to_none is None else original(owner, set_to_none=set_to_none)
            if piece.is_first and not piece.num_backward:
                target = getattr(owner, "optimizer", owner)  # Accelerate's own zero_grad waits for the last piece
                if target is owner:
                    return original(owner, set_to_none=set_to_none is not False)
                return target.zero_grad(set_to_none=set_to_none is not False)
            return None

        return zero_grad

    def _once_a_batch(self, original: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
        def once(*args: Any, **kwargs: Any) -> Any:
            if self._piece is None or self._piece.is_last or not stays_within(args, self._accelerators):
                return original(*args, **kwargs)
            return instead(*args, **kwargs)

        return once


def _norm(*args: Any, **kwargs: Any) -> Any:
    """Replaces clipping for all pieces but the last one. Returns the norm of the gradients so far and clips nothing."""
    given = (
        args[1] if len(args) > 1 and hasattr(args[0], "gradient_state") else args[0] if args else kwargs["parameters"]
    )
    parameters = [given] if isinstance(given, torch.Tensor) else list(given)
    return torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])
