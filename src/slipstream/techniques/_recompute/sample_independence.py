"""Checks whether a module's result for a sample is independent of the other samples in the batch. The check runs the
first samples of the script's own batch, whole and in halves. It comes before anything relies on the answer, and it
leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from slipstream.seams.nested import tensors_of
from slipstream.seams.rng_state import RngState, default_generators
from slipstream.techniques._recompute.module_snapshot import ModuleSnapshot, ModuleState
from slipstream.techniques._recompute.record_random import RandomRecorder, RandomReplay, RefusedError
from slipstream.techniques._recompute.split_batch import (
    PLAIN,
    Cut,
    bounds,
    filled,
    frame_of,
    joined,
    others_in,
)

_NUM_SAMPLES = 4
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}  # Relative to the norm. In lower precision it is 2e-2.
_HOOKS = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


class Form:
    """What is known about the calls of one kind."""

    def __init__(self, cut: Cut, learning: list[bool], is_random: bool) -> None:
        self.cut = cut
        self.learning = learning  # Whether each result has a gradient
        self.is_random = is_random


def kind_of(tensors: Sequence[torch.Tensor]) -> Any:
    """Returns the kind of a call: a key that does not depend on the sizes of its tensors."""
    return tuple(
        (one.dim(), one.dtype, one.requires_grad, one.layout, one.is_nested, one.is_inference()) for one in tensors
    )


def examine(module: torch.nn.Module, call: Any, args: Any, kwargs: Any, device: str) -> Form:
    """Tries a call with a few samples, and returns what is known about calls of its kind. Raises RefusedError with the
    reason if these calls cannot be computed in pieces."""
    why = why_not(module)
    if why:
        raise RefusedError(why)
    tensors = tensors_of((args, kwargs))
    if any(tensor.is_inference() for tensor in tensors):
        raise RefusedError("it receives a tensor made in inference mode, which cannot be kept for a backward pass")
    cut = Cut(tensors)
    length = min(_NUM_SAMPLES, cut.length(tensors)) if any(cut.is_cut) else 0
    if length < 2:
        raise RefusedError("it does not receive a batch of samples")
    few = [one.detach().requires_grad_(one.requires_grad) for one in cut.piece(tensors, 0, length)]
    frame, rng_state, state = frame_of((args, kwargs)), RngState(default_generators(device)), ModuleState(module)
    with ModuleSnapshot(module) as snapshot:
        try:
            form = _compare(module, call, frame, cut, few, length)
            if state.has_new_tensor():
                raise RefusedError("it stores tensors of a call besides its results")
            if state.has_changed():
                raise RefusedError("it changes its own attributes while it computes")
            return form
        except RefusedError:
            raise
        except Exception as fault:  # Our error, or the script's, which the training raises again.
            raise RefusedError(f"a few samples could not be computed: {type(fault).__name__}: {fault}") from None
        finally:
            snapshot.rewind()
            state.restore()
            rng_state.restore()


def why_not(module: torch.nn.Module) -> str:
    """Returns why a call cannot be computed in pieces, as far as that is known without a call, or ""."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            return f"{type(layer).__name__} mixes the samples of a batch"
        if any(getattr(layer, hooks, None) for hooks in _HOOKS):
            return f"{type(layer).__name__} has hooks, which would be called for every piece"
    return ""


def _compare(module: torch.nn.Module, call: Any, frame: Any, cut: Cut, few: list[torch.Tensor], length: int) -> Form:
    rng_state = RngState(default_generators(next(module.parameters()).device.type))
    args, kwargs = filled(frame, few)
    with torch.enable_grad(), RandomRecorder([*few, *module.parameters(), *module.buffers()]) as recording:
        whole = call(*args, **kwargs)
    results = tensors_of(whole)
    _look_at(whole, results, length)
    is_random = rng_state.has_moved()
    known = {id(one) for one in (*few, *module.parameters())}
    if any(id(leaf) not in known for leaf in _graph_leaves(results)):
        raise RefusedError("it uses trainable tensors that are not its own weights")
    spans, halves = bounds(length, 2), []
    for start, stop in spans:
        rng_state.restore()
        args, kwargs = filled(frame, [one.detach() for one in cut.piece(few, start, stop)])
        with torch.no_grad(), RandomReplay(recording.draws, start, stop, length) as replaying:
            halves.append(call(*args, **kwargs))
        if not replaying.is_used_up():
            raise RefusedError("a piece of the batch draws fewer random numbers than the whole")
    together = joined(halves, spans)
    for one, other in zip(results, tensors_of(together), strict=True):
        if not _is_close(one.detach(), other):
            raise RefusedError("its result for a sample depends on the others in the batch")
    if any(list(others_in(half)) != list(others_in(whole)) for half in halves):
        raise RefusedError("it returns Python numbers that depend on the batch")
    return Form(cut, [one.requires_grad for one in results], is_random)


def _look_at(whole: Any, results: list[torch.Tensor], length: int) -> None:
    if any(one.dim() == 0 for one in results):
        raise RefusedError("it returns a number for the whole batch, such as its own loss")
    if not results or any(len(one) != length for one in results):
        raise RefusedError("its results do not have one row for each sample")
    for other in others_in(whole):
        if not isinstance(other, PLAIN):
            raise RefusedError(f"it returns a {type(other).__name__}, which cannot be split")


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    size, apart = one.double().norm(), (one.double() - other.double()).norm()
    return bool(apart <= _TOLERANCE.get(one.dtype, 2e-2) * size.clamp_min(1e-30))


def _graph_leaves(results: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yields the leaves of the results' graph."""
    left = [one.grad_fn for one in results if one.grad_fn is not None]
    seen = set(left)
    while left:
        node = left.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                left.append(following)
