"""Checks whether the loss of a batch can be combined from the losses of its pieces in the way in which frameworks
accumulate. The check runs a few samples through a copy of the model before the training starts. It leaves no trace."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from slipstream.seams.modules.module_copy import copy_module
from slipstream.seams.nested import tensors_of
from slipstream.seams.rng_state import RngState, default_generators
from slipstream.techniques._accumulate.split_loader import base_of
from slipstream.techniques._recompute.record_random import RefusedError
from slipstream.techniques._recompute.split_batch import Cut, filled, frame_of

_NUM_SAMPLES = 4
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}  # Relative to the loss. In lower precision it is 3e-2.
_MAX_NODES = 5000
_MEAN = 1  # Torch's number for the reduction "mean"
TOKENS = "the loss averages over tokens, and pieces of a batch hold different numbers of them; micro_batches is exact"

Loss = Callable[[Any, Any], Any]  # Takes a copy of the model and a batch.


def refuse_mixing(model: torch.nn.Module, always: bool = False) -> None:
    """Raises RefusedError if a layer mixes samples. `always`: the framework sets every layer to training mode before
    each step."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and (always or layer.training):
            raise RefusedError(f"{type(layer).__name__} mixes the samples of a batch")


def try_losses(model: torch.nn.Module, loader: Any, loss: Loss, *, is_sum: bool = False) -> None:
    """Raises RefusedError with the reason if the losses of pieces do not combine to the loss of the batch. `is_sum`:
    pieces are added, not averaged."""
    device = next(model.parameters()).device.type
    rng_state = RngState(default_generators(device))
    try:
        with _quiet():
            batch = fetch_few(loader)
            control = copy_module(model).eval()  # In training mode dropout depends on the shape.
            _compare(batch, lambda part: loss(control, part), is_sum)
    except RefusedError:
        raise
    except Exception as fault:  # Our error, or the script's, which the training raises again.
        raise RefusedError(f"the loss of some samples could not be computed: {type(fault).__name__}: {fault}") from None
    finally:
        rng_state.restore()


def fetch_few(loader: Any) -> Any:
    """Returns a batch of samples from all over the dataset. The batch is made in the loader's own way."""
    base = base_of(loader)
    length = len(base.dataset)
    num = min(_NUM_SAMPLES, length)
    if num < 2:
        raise RefusedError("the dataset has fewer than two samples")
    indices = [length * index // num for index in range(num)]
    fetcher: Any = _MapDatasetFetcher(base.dataset, True, base.collate_fn, False)
    return fetcher.fetch(indices)


def _compare(batch: Any, loss: Callable[[Any], Any], is_sum: bool) -> None:
    tensors, frame = tensors_of(batch), frame_of(batch)
    cut = Cut(tensors)
    num = cut.length(tensors) if any(cut.is_cut) else 0
    if num < 2:
        raise RefusedError("a batch does not consist of tensors with one row per sample")
    with torch.enable_grad():
        whole = loss(batch)
        if not is_sum:
            refuse_uneven(whole, num)
        for at in (num // 2, 1):
            first, second = (
                float(loss(filled(frame, cut.piece(tensors, start, stop)))) for start, stop in ((0, at), (at, num))
            )
            together = first + second if is_sum else (at * first + (num - at) * second) / num
            tolerance = _TOLERANCE.get(whole.dtype, 3e-2) * max(abs(float(whole)), 1e-3)
            if not abs(float(whole) - together) <= tolerance:
                raise RefusedError(_why(float(whole), first, second, is_sum))


def _why(whole: float, first: float, second: float, is_sum: bool) -> str:
    numbers = f"{whole:.4g} for the batch, {first:.4g} and {second:.4g} for two pieces"
    if is_sum:
        return f"the model receives the number of labels per update but does not divide by it: a loss of {numbers}"
    if abs(whole - first - second) <= 1e-3 * abs(whole):
        return f"the loss is a sum over the batch, which the framework would divide: {numbers}; micro_batches is exact"
    return f"the loss is not the mean of the samples' losses: {numbers}; micro_batches may apply"


def refuse_uneven(loss: torch.Tensor, num_samples: int) -> None:
    """Raises RefusedError if the graph of the loss shows a mean with another divisor in each piece: a cross entropy
    with class weights or with more than one target per sample."""
    for node in _nodes(loss):
        if not node.name().startswith(("NllLoss", "NllLoss2D")) or node._saved_reduction != _MEAN:
            continue
        if node._saved_weight is not None:
            raise RefusedError(
                "the cross entropy has class weights, whose sum differs between pieces; micro_batches is exact"
            )
        if node._saved_target.numel() > num_samples:
            raise RefusedError(TOKENS)


def compares_samples(loss: torch.Tensor, num_samples: int) -> bool:
    """Whether a cross entropy matches the samples of a batch with each other, as contrastive losses do."""
    targets = [node._saved_target for node in _nodes(loss) if node.name().startswith("NllLoss")]
    return num_samples > 1 and any(
        one.numel() == num_samples and torch.equal(one.flatten().cpu(), torch.arange(num_samples, device="cpu"))
        for one in targets
    )


def is_known_mean(loss: torch.Tensor) -> bool:
    """Whether the loss is computed from means of torch by adding and scaling."""
    ends: list[Any] = []
    todo: list[Any] = [loss.grad_fn]
    while todo and len(ends) < 32:
        node = todo.pop()
        if node is None:
            continue
        if node.name().startswith(
            ("AddBackward", "SubBackward", "MulBackward", "DivBackward", "NegBackward", "ToCopy")
        ):
            todo.extend(inner for inner, _ in node.next_functions)
        else:
            ends.append(node)
    return bool(ends) and all(map(_is_mean, ends))


def _is_mean(node: Any) -> bool:
    if node.name().startswith("MeanBackward"):
        return True
    return getattr(node, "_saved_reduction", None) == _MEAN


def _nodes(loss: torch.Tensor) -> Iterator[Any]:
    seen: set[Any] = set()
    todo: list[Any] = [loss.grad_fn]
    while todo and len(seen) < _MAX_NODES:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo.extend(inner for inner, _ in node.next_functions)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses warnings and output. A module that logs outside of a training prints a warning, which the plain
    script would not print."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
