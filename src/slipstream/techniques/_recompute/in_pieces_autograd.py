"""Computes the gradients of one module call by recomputing the call in pieces. Autograd sees one operation from weights
and inputs to results, so hooks of parameters, `autograd.grad` and retained graphs work as usual. The caller has already
checked that the call can be split."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.autograd import backward, grad  # Torch's own functions. Patches see only the script's passes.

from slipstream.data.transport.malloc import return_freed
from slipstream.sandbox.oom_messages import hints_at_shortage
from slipstream.seams.nested import tensors_of
from slipstream.seams.rng_state import RngState, default_generators
from slipstream.techniques._recompute.record_random import RandomRecorder, RandomReplay, RefusedError
from slipstream.techniques._recompute.split_batch import Cut, bounds, filled, frame_of, joined

Tensors = Sequence[torch.Tensor]
Gradients = list[torch.Tensor | None]


class _Depth(threading.local):
    num = 0  # Number of our calls that are running in this thread
    num_pieces = 0  # Number of our calls in this thread that compute a piece


_depth = _Depth()


def is_inside() -> bool:
    """Whether one of our calls is running in this thread. A module that is outermost at other times may be called
    inside it."""
    return _depth.num > 0


def is_in_pieces() -> bool:
    return _depth.num_pieces > 0


class PassListener(Protocol):
    """Is told how the passes of a call ended."""

    retries: bool  # Whether a pass that ran out of memory is repeated in more pieces

    def on_shortage(self, num_pieces: int) -> None:
        """Is called before a pass that ran out of memory is repeated in this number of pieces."""

    def on_end(self, is_survived: bool) -> None:
        """Is called when a pass has ended. `is_survived`: the pass gave a result."""

    def on_second_order(self) -> None:
        """Is called if gradients of gradients are requested."""


class PiecewiseCall:
    """One call in pieces. `is_random`: the module draws random numbers. The numbers of the whole batch are then
    recorded and distributed to the pieces."""

    def __init__(
        self, call: Any, cut: Cut, args: Any, kwargs: Any, device: str, is_random: bool, listener: PassListener
    ) -> None:
        self.listener = listener
        self._call = call
        self._cut = cut
        self._frame = frame_of((args, kwargs))
        self._device = device
        self._rng_state = RngState(default_generators(device))
        self._climate = [(kind, torch.get_autocast_dtype(kind)) for kind in {"cpu", device} if _is_cast(kind)]
        self._draws: list[torch.Tensor] | None = None
        self._kept: tuple[Tensors, list[torch.Tensor]] | None = None  # Leaves and results of a stored graph
        self.is_random = is_random
        self.num_pieces = 1

    # --- forward ---------------------------------------------------------------------------------------------------

    def keep(self, tensors: Tensors) -> Any:
        """Calls the module as the script would, keeps the graph, and returns the results without the graph."""
        leaves = _leaves(tensors)
        with torch.enable_grad():
            result = self._run(leaves)
        self._kept = (leaves, tensors_of(result))
        self.is_random = self._rng_state.has_moved()
        return filled(result, [one.detach() for one in self._kept[1]])

    def compute(self, tensors: Tensors, num_pieces: int) -> Any:
        """Returns the results without a graph."""
        self.num_pieces = num_pieces
        if self.is_random:
            return self._record(tensors)
        spans = bounds(self._cut.length(tensors), num_pieces)
        with torch.no_grad():
            result = joined([self._run(self._cut.piece(tensors, *span)) for span in spans], spans)
        self._forget_casts()
        if not self._rng_state.has_moved():
            return result
        self.rewind()  # Random numbers were drawn, because dropout was switched on after the first call.
        self.is_random = True
        return self._record(tensors)

    def rewind(self) -> None:
        self._rng_state.restore()

    def _record(self, tensors: Tensors) -> Any:
        with torch.no_grad(), RandomRecorder() as recording:
            result = self._run(tensors)
        self._draws = recording.draws
        self._forget_casts()
        # The script cannot change views in place if they were created here, so views are copied.
        return filled(result, [one.clone() if one._is_view() else one for one in tensors_of(result)])

    def _forget_casts(self) -> None:
        """Clears autocast's cache of cast weights, because they have no gradient."""
        if self._climate:
            torch.clear_autocast_cache()

    # --- backward --------------------------------------------------------------------------------------------------

    def gradients(self, tensors: Tensors, weights: Tensors, arrived: Gradients) -> Gradients:
        """Returns the gradients of tensors and weights for the gradients that arrived at the results."""
        if torch.is_grad_enabled():  # With create_graph=True the gradients must be differentiable.
            self.listener.on_second_order()
            return self._differentiable(tensors, weights, arrived)
        now = RngState(default_generators(self._device))
        found: Gradients | None = None
        try:
            with _without_hooks(weights):
                found = self._from_kept(weights, arrived) or self._from_pieces(tensors, weights, arrived)
                return found
        finally:
            now.restore()
            self.listener.on_end(found is not None)

    def _from_kept(self, weights: Tensors, arrived: Gradients) -> Gradients | None:
        kept, self._kept = self._kept, None  # A second backward pass recomputes the graph.
        if kept is None:
            return None
        try:
            return _grad(kept[1], arrived, [*kept[0], *weights])
        except Exception as fault:
            if not self.listener.retries or not is_shortage(fault):
                raise
        del kept
        self._halve()
        return None

    def _from_pieces(self, tensors: Tensors, weights: Tensors, arrived: Gradients) -> Gradients:
        length = self._cut.length(tensors)
        while True:
            try:
                return self._sum(tensors, weights, arrived, bounds(length, self.num_pieces))
            except RefusedError:
                return self._sum(tensors, weights, arrived, [(0, length)])
            except Exception as fault:
                if not self.listener.retries or not is_shortage(fault) or self.num_pieces >= length:
                    raise
            self._halve()

    def _halve(self) -> None:
        self.num_pieces *= 2
        make_room(self._device)
        self.listener.on_shortage(self.num_pieces)

    def _sum(self, tensors: Tensors, weights: Tensors, arrived: Gradients, spans: list[tuple[int, int]]) -> Gradients:
        if self.is_random and self._draws is None and len(spans) > 1:
            self.rewind()
            with self._forward_conditions():
                self._record(tensors)
        totals: Gradients = [None] * len(tensors)
        rows: list[Gradients] = [[] for _ in tensors]
        held = [weight.grad for weight in weights]
        # Torch accumulates into .grad weight by weight. This needs the least memory.
        _set_gradients(weights, [None] * len(weights))
        try:
            self._add_up(tensors, weights, arrived, spans, totals, rows)
            summed = [weight.grad for weight in weights]
        finally:
            _set_gradients(weights, held)
        return [*totals, *summed]

    def _add_up(
        self,
        tensors: Tensors,
        weights: Tensors,
        arrived: Gradients,
        spans: list[tuple[int, int]],
        totals: Gradients,
        rows: list[Gradients],
    ) -> None:
        for span in spans:
            found = self._piece(tensors, weights, arrived, span, is_whole=len(spans) == 1)
            for index, gradient in enumerate(found):
                if self._cut.is_cut[index]:
                    rows[index].append(gradient)
                elif gradient is not None:
                    before = totals[index]
                    totals[index] = gradient if before is None else before + gradient
        for index, column in enumerate(rows):
            if any(one is not None for one in column):
                totals[index] = torch.cat(
                    [
                        torch.zeros_like(tensors[index][a:b]) if one is None else one
                        for one, (a, b) in zip(column, spans, strict=True)
                    ]
                )

    def _piece(
        self, tensors: Tensors, weights: Tensors, arrived: Gradients, span: tuple[int, int], is_whole: bool
    ) -> Gradients:
        start, stop = span
        leaves = _leaves(self._cut.piece(tensors, start, stop), like=tensors)
        self.rewind()  # Python and NumPy must draw the same numbers as in the forward pass.
        replaying = None
        if self.is_random and not is_whole:
            assert self._draws is not None
            replaying = RandomReplay(self._draws, start, stop, self._cut.length(tensors))
        _depth.num_pieces += 1
        try:
            with self._forward_conditions(), replaying or contextlib.nullcontext():
                results = tensors_of(self._run(leaves))
        finally:
            _depth.num_pieces -= 1
        if replaying is not None and not replaying.is_used_up():
            raise RefusedError("a piece of the batch draws fewer random numbers than the whole")
        parts: Gradients = [None if one is None or is_whole else one[start:stop] for one in arrived]
        _accumulate(results, arrived if is_whole else parts, [*leaves, *weights])
        return [leaf.grad for leaf in leaves]

    def _differentiable(self, tensors: Tensors, weights: Tensors, arrived: Gradients) -> Gradients:
        now = RngState(default_generators(self._device))
        self.rewind()
        try:
            with self._forward_conditions(), _without_hooks(weights):
                results = tensors_of(self._run(tensors))
                return _grad(results, arrived, [*tensors, *weights], is_twice=True)
        finally:
            now.restore()

    # --- both ------------------------------------------------------------------------------------------------------

    def _run(self, tensors: Tensors) -> Any:
        args, kwargs = filled(self._frame, tensors)
        _depth.num += 1
        try:
            return self._call(*args, **kwargs)
        finally:
            _depth.num -= 1

    @contextlib.contextmanager
    def _forward_conditions(self) -> Iterator[None]:
        """Restores the autocast state of the forward pass and enables gradients."""
        with contextlib.ExitStack() as stack:
            then = dict(self._climate)
            for kind in {"cpu", self._device}:
                if kind in then:
                    stack.enter_context(torch.autocast(kind, dtype=then[kind], cache_enabled=False))
                elif _is_cast(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            stack.enter_context(torch.enable_grad())
            yield


class _PiecewiseFunction(torch.autograd.Function):
    """The single autograd operation from weights and inputs to results."""

    @staticmethod
    def forward(ctx: Any, piecewise: PiecewiseCall, results: list[torch.Tensor], num_tensors: int, *given: Any) -> Any:
        learning, *learners = given
        ctx.piecewise, ctx.num_tensors = piecewise, num_tensors
        ctx.save_for_backward(*learners)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(one for one, learns in zip(results, learning, strict=True) if not learns))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *arrived: Any) -> Any:
        saved = ctx.saved_tensors
        tensors, weights = saved[: ctx.num_tensors], saved[ctx.num_tensors :]
        found = ctx.piecewise.gradients(tensors, weights, list(arrived))
        return None, None, None, None, *found


def tied(piecewise: PiecewiseCall, result: Any, learning: Sequence[bool], tensors: Tensors, weights: Tensors) -> Any:
    """Returns the results for the script. The results are connected to our backward pass. `learning`: whether each
    result has a gradient."""
    results = tensors_of(result)
    if len(learning) != len(results):
        learning = [one.is_floating_point() for one in results]
    outcome = _PiecewiseFunction.apply(piecewise, results, len(tensors), learning, *tensors, *weights)  # type: ignore[no-untyped-call]
    return filled(result, outcome)


def is_shortage(fault: BaseException) -> bool:
    """Whether the exception may mean that memory ran out, on the host or on a device."""
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(fault, RuntimeError) and hints_at_shortage(str(fault))


def make_room(device: str) -> None:
    """Frees cached memory. Call it when the frames of the failed call no longer exist. Freed memory on the heap of the
    host is returned too, because a library below torch may request its memory from the system."""
    gc.collect()
    return_freed()
    if device not in ("cpu", "meta"):
        getattr(torch.get_device_module(device), "empty_cache", lambda: None)()


def _leaves(tensors: Tensors, like: Tensors = ()) -> list[torch.Tensor]:
    return [
        one.detach().requires_grad_(model.requires_grad) for one, model in zip(tensors, like or tensors, strict=True)
    ]


def _grad(results: Tensors, arrived: Gradients, wanted: Tensors, is_twice: bool = False) -> Gradients:
    """Returns the gradients of `wanted`, with None for each tensor that needs no gradient or gets none."""
    pairs = _pairs(results, arrived)
    asked = [index for index, one in enumerate(wanted) if one.requires_grad]
    found: Gradients = [None] * len(wanted)
    if not pairs or not asked:
        return found
    gradients = grad(
        [result for result, _ in pairs],
        [wanted[index] for index in asked],
        [gradient for _, gradient in pairs],
        allow_unused=True,
        create_graph=is_twice,
    )
    for index, gradient in zip(asked, gradients, strict=True):
        found[index] = gradient
    return found


def _accumulate(results: Tensors, arrived: Gradients, wanted: Tensors) -> None:
    pairs = _pairs(results, arrived)
    asked = [one for one in wanted if one.requires_grad]
    if pairs and asked:
        backward([result for result, _ in pairs], [gradient for _, gradient in pairs], inputs=asked)


def _pairs(results: Tensors, arrived: Gradients) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = [(a, b) for a, b in zip(results, arrived, strict=True) if b is not None and a.requires_grad]
    if any(result.shape != gradient.shape for result, gradient in pairs):
        raise RefusedError("its recomputed results have another size")
    return pairs


def _set_gradients(weights: Tensors, gradients: Gradients) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient


@contextlib.contextmanager
def _without_hooks(weights: Tensors) -> Iterator[None]:
    """Disables the hooks of weights. The hooks run once for the whole gradient, when it is returned to autograd."""
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    found = [hooks for one in weights for kind in kinds if (hooks := getattr(one, kind, None))]
    hooked = [(hooks, dict(hooks)) for hooks in found]
    for hooks, _ in hooked:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in hooked:
            hooks.update(before)


def _is_cast(kind: str) -> bool:
    return torch.is_autocast_enabled(kind)
