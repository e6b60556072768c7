"""Finds the repeated blocks of a model, and runs one block without storing its activations. The backward pass
recomputes the block from its inputs, with the random numbers and buffers of the forward pass. The recomputation leaves
buffers and generators unchanged. If buffers changed again, batch norm would count a batch twice."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from slipstream.seams.nested import tensors_of
from slipstream.seams.rng_state import RngState, default_generators
from slipstream.techniques._recompute.in_pieces_autograd import is_in_pieces
from slipstream.techniques._recompute.module_snapshot import ModuleSnapshot
from slipstream.techniques._recompute.record_random import RandomRecorder, RefusedError
from slipstream.techniques._recompute.split_batch import PLAIN, has_rows, others_in

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

Values = list[tuple[torch.Tensor, torch.Tensor]]

_FEWEST = 3  # Least number of equal blocks that count as repeated
_MOST_OF_IT = 0.5  # Least share of the model's weights that the blocks must hold


def find_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the repeated blocks of a model in their order, or [] if they do not hold most of the model's weights.
    Repeated blocks are children of one list or sequence with the same class and the same shapes of weights. Blocks
    inside blocks are not searched."""
    found: list[torch.nn.Module] = []
    inside: set[torch.nn.Module] = set()
    for container in module.modules():
        if container in inside or not isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        for group in _alike(container):
            found += group
            inside |= {part for block in group for part in block.modules()}
    if any(map(torch.nn.parameter.is_lazy, module.parameters())):
        return []  # The size of lazy weights is not known yet.
    weight = sum(parameter.numel() for parameter in module.parameters())
    held = {parameter for block in found for parameter in block.parameters()}
    return found if sum(parameter.numel() for parameter in held) > _MOST_OF_IT * weight else []


def _alike(container: torch.nn.Module) -> list[list[torch.nn.Module]]:
    groups: dict[Any, list[torch.nn.Module]] = defaultdict(list)
    for child in dict.fromkeys(container.children()):
        shapes = tuple(tuple(parameter.shape) for parameter in child.parameters())
        is_block = shapes and sum(1 for _ in child.modules()) >= 3  # A single layer stores only its input anyway.
        if is_block:
            groups[type(child), shapes].append(child)
    return [group for group in groups.values() if len(group) >= _FEWEST]


class Checkpointed:
    def __init__(self, context: ApplyContext, block: torch.nn.Module, description: str) -> None:
        self._context = context
        self._block = weakref.ref(block)
        self._description = description
        self._name = type(block).__name__
        self._device = next(block.parameters()).device.type
        self._changing: list[torch.Tensor] | None = None  # Buffers that a call changes. None before the first call.
        self._is_on = True

    def call(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        block: Any = self._block()
        if not (self._is_on and block.training and torch.is_grad_enabled()) or is_in_pieces():
            return call(*args, **kwargs)
        if torch.compiler.is_compiling() or not self._may_repeat(block, args, kwargs):
            return call(*args, **kwargs)
        return self._first(block, call, args, kwargs) if self._changing is None else self._keep(call, args, kwargs)

    def _may_repeat(self, block: torch.nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether the block can be recomputed from these inputs. An object such as a cache of keys and values may have
        changed by then. Sparse and nested tensors can be neither checked nor restored."""
        strange = next((other for other in others_in((args, kwargs)) if not isinstance(other, PLAIN)), None)
        if strange is not None:
            self._step_aside(f"{self._name} receives a {type(strange).__name__}, which it may change")
        elif not all(map(has_rows, tensors_of((args, kwargs)))):
            self._step_aside(f"{self._name} receives a sparse or nested tensor, which it may change")
        elif any(tensor.is_inference() for tensor in tensors_of((args, kwargs))):
            self._step_aside(f"{self._name} receives a tensor made in inference mode, which it may change")
        elif self._changing is None and not all(map(has_rows, block.buffers())):
            self._step_aside(f"{self._name} has a sparse or nested buffer, which cannot be restored")
        return self._is_on

    def _first(self, block: torch.nn.Module, call: Any, args: Any, kwargs: Any) -> Any:
        """Runs the first call of the block. Detects writes into inputs before they happen, and finds the buffers that
        the block changes."""
        before = [(buffer, buffer.detach().clone()) for buffer in block.buffers()]
        self._changing = [buffer for buffer, _ in before]
        with ModuleSnapshot(block) as snapshot:
            rng_state = RngState(default_generators(self._device))
            try:
                with RandomRecorder(tensors_of((args, kwargs)), is_lenient=True):
                    result = self._keep(call, args, kwargs)
            except RefusedError:
                snapshot.rewind()
                rng_state.restore()
                self._step_aside(f"{self._name} changes its inputs while it computes")
                return call(*args, **kwargs)
        self._changing = [buffer for buffer, value in before if not _is_equal(buffer, value)]
        self._context.changed(self._description)
        return result

    def _keep(self, call: Any, args: Any, kwargs: Any) -> Any:
        then: Values = _values(self._changing or [])
        rng_state = RngState(default_generators(self._device))
        versions = [tensor._version for tensor in tensors_of((args, kwargs))]

        @contextlib.contextmanager
        def recomputation() -> Iterator[None]:
            if [tensor._version for tensor in tensors_of((args, kwargs))] != versions:
                reason = f"the inputs of {self._name} have changed since its forward pass"
                raise RuntimeError(f"checkpointing: {reason}: leave this technique out of the recipe")
            now, after = _values([buffer for buffer, _ in then]), RngState(default_generators(self._device))
            _put(then)
            rng_state.restore()
            try:
                yield
            finally:
                _put(now)
                after.restore()

        return checkpoint(
            functools.partial(call, **kwargs),
            *args,
            use_reentrant=False,
            preserve_rng_state=False,  # `recomputation` restores the generators, also those of Python and NumPy
            context_fn=lambda: (contextlib.nullcontext(), recomputation()),
        )

    def _step_aside(self, reason: str) -> None:
        self._is_on = False
        self._context.decline(reason)


def _is_equal(buffer: torch.Tensor, value: torch.Tensor) -> bool:
    """Returns False for types that torch cannot compare. Such a buffer is always restored."""
    try:
        return torch.equal(buffer, value)
    except (NotImplementedError, RuntimeError):
        return False


def _values(buffers: list[torch.Tensor]) -> Values:
    return [(buffer, buffer.detach().clone()) for buffer in buffers]


def _put(values: Values) -> None:
    for buffer, value in values:
        buffer.data.copy_(value)  # Autograd does not see this, and does not see batch norm's own update.
