"""Wraps an outermost module so that its training calls are computed in pieces. Micro-batches always use a fixed number
of pieces. `survive_oom` uses pieces only when memory runs out. If the batch of a module cannot be split, the module
is called as the script calls it, and the reason is reported."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from slipstream.seams.nested import tensors_of
from slipstream.techniques._recompute.in_pieces_autograd import (
    PassListener,
    PiecewiseCall,
    is_inside,
    is_shortage,
    make_room,
    tied,
)
from slipstream.techniques._recompute.record_random import RefusedError
from slipstream.techniques._recompute.sample_independence import Form, examine, kind_of, why_not
from slipstream.techniques._recompute.split_batch import has_rows

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext


class InPieces:
    """The base class. It decides which calls are split and stores what is known about them."""

    def __init__(self, context: ApplyContext, module: torch.nn.Module) -> None:
        self.context = context
        self.name = type(module).__name__
        self._module = weakref.ref(module)
        self.device = next(module.parameters()).device.type
        self._forms: dict[Any, Form | None] = {}
        self._norms: list[torch.nn.Module] = []  # Layers that mix samples in training mode
        self._is_on = True

    def call(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._module()
        if not (self._is_on and module.training and torch.is_grad_enabled()) or is_inside():
            return call(*args, **kwargs)
        if torch.compiler.is_compiling():
            return call(*args, **kwargs)
        tensors = tensors_of((args, kwargs))
        form = self._form(module, call, args, kwargs, tensors)
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        if form is None or form.cut.length(tensors) < 2 or not (weights or any(one.requires_grad for one in tensors)):
            return call(*args, **kwargs)
        listener = self.listen(tensors)
        piecewise = PiecewiseCall(call, form.cut, args, kwargs, self.device, form.is_random, listener)
        try:
            result = self.compute(piecewise, tensors, form)
        except RefusedError as refusal:
            piecewise.rewind()
            self.step_aside(str(refusal))
            return call(*args, **kwargs)
        return tied(piecewise, result, form.learning, tensors, weights)

    def listen(self, tensors: list[torch.Tensor]) -> PassListener:
        """Returns the listener of a call with these inputs."""
        return PieceListener(self)

    def compute(self, piecewise: PiecewiseCall, tensors: list[torch.Tensor], form: Form) -> Any:
        raise NotImplementedError

    def step_aside(self, reason: str) -> None:
        self._is_on = False
        self.context.decline(f"{self.name}: {reason}")

    def _form(self, module: Any, call: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Form | None:
        kind = kind_of(tensors)
        if kind in self._forms:
            form = self._forms[kind]
            if form is not None and any(norm.training for norm in self._norms):
                self._forms[kind] = form = None
                self.context.decline(f"{self.name}: {why_not(module)}")
            return form
        try:
            if _is_too_soon(module, tensors):
                return None
            norms = torch.nn.modules.batchnorm._BatchNorm
            self._norms = [layer for layer in module.modules() if isinstance(layer, norms)]
            self._forms[kind] = examine(module, call, args, kwargs, self.device)
        except RefusedError as refusal:
            self._forms[kind] = None
            self.context.decline(f"{self.name}: {refusal}")
        except Exception as fault:  # An error of our code. Nothing was computed yet.
            self._forms[kind] = None
            self.context.decline(f"{self.name}: {type(fault).__name__}: {fault}")
        return self._forms[kind]


class PieceListener:
    """Follows one call whose number of pieces is fixed."""

    retries = False

    def __init__(self, owner: InPieces) -> None:
        self._owner = owner

    def on_shortage(self, num_pieces: int) -> None: ...

    def on_end(self, is_survived: bool) -> None: ...

    def on_second_order(self) -> None:
        self._owner.step_aside("the script requests gradients of gradients, which are not available in pieces")


def _is_too_soon(module: torch.nn.Module, tensors: list[torch.Tensor]) -> bool:
    """Whether this call tells nothing about later calls, because its batch has one sample or because it creates lazy
    weights."""
    first = next((one for one in tensors if one.dim()), None)
    is_single = first is not None and has_rows(first) and len(first) < 2
    return is_single or any(map(torch.nn.parameter.is_lazy, module.parameters()))


class MicroBatches(InPieces):
    def __init__(self, context: ApplyContext, module: torch.nn.Module, num_pieces: int) -> None:
        super().__init__(context, module)
        self._num_pieces = num_pieces

    def compute(self, piecewise: PiecewiseCall, tensors: list[torch.Tensor], form: Form) -> Any:
        result = piecewise.compute(tensors, self._num_pieces)
        form.is_random = piecewise.is_random
        self.context.changed(f"{self.name} in {self._num_pieces} pieces of its batch")
        return result


class Survivor(InPieces):
    """Calls the module as the script does until memory runs out. The number of pieces is then doubled until they fit. A
    later batch that is at least as large starts with that number of pieces."""

    def __init__(self, context: ApplyContext, module: torch.nn.Module) -> None:
        super().__init__(context, module)
        self.num_survived = 0
        self.most_pieces = 1
        self._fits: dict[int, int] = {}  # Number of pieces, by the bytes of the inputs that needed them

    def listen(self, tensors: list[torch.Tensor]) -> PassListener:
        return Shortage(self, _size(tensors))

    def compute(self, piecewise: PiecewiseCall, tensors: list[torch.Tensor], form: Form) -> Any:
        size = _size(tensors)
        num_pieces = max((num for least, num in self._fits.items() if size >= least), default=1)
        self.context.changed(f"{self.name} can be computed in pieces")
        while True:
            try:
                result = piecewise.keep(tensors) if num_pieces == 1 else piecewise.compute(tensors, num_pieces)
            except Exception as fault:
                if not is_shortage(fault) or num_pieces >= form.cut.length(tensors):
                    raise
            else:
                piecewise.listener.on_end(is_survived=True)
                return result
            piecewise.rewind()
            num_pieces *= 2
            make_room(self.device)
            piecewise.listener.on_shortage(num_pieces)

    def note(self, size: int, num_pieces: int) -> None:
        self._fits[size] = max(num_pieces, self._fits.get(size, 1))
        self.most_pieces = max(self.most_pieces, num_pieces)


def _size(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


class Shortage(PieceListener):
    """Follows one call that may run out of memory in its forward or backward pass. The call has recovered when both
    passes have ended. The forward pass may fit in fewer pieces than the backward pass."""

    retries = True

    def __init__(self, survivor: Survivor, size: int) -> None:
        super().__init__(survivor)
        self._survivor = survivor
        self._size = size
        self._num_pieces = 0  # Number of needed pieces; 0 if memory did not run out
        self._is_counted = False

    def on_shortage(self, num_pieces: int) -> None:
        self._num_pieces = num_pieces

    def on_end(self, is_survived: bool) -> None:
        if not self._num_pieces:
            return
        self._survivor.num_survived += is_survived - self._is_counted
        self._is_counted = is_survived
        if is_survived:
            self._survivor.note(self._size, self._num_pieces)
