"""One call of a module whose gradients come from computing it again, in pieces. Autograd sees one operation from the
weights and the inputs to the results, so that parameters' hooks, `autograd.grad` and a retained graph work as ever.
Refuses nothing itself: what may be cut is examined before."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import backward, grad  # torch's own: who stands around them later looks at the script's passes

from slipstream.data.transport.malloc import return_freed
from slipstream.sandbox.oom_messages import hints_at_shortage
from slipstream.techniques._recompute.record_random import RandomRecorder, RandomReplay, RefusedError
from slipstream.techniques._recompute.rng_state import RngState
from slipstream.techniques._recompute.split_batch import Cut, bounds, filled, frame_of, joined, tensors_in

Tensors = Sequence[torch.Tensor]
Gradients = list[torch.Tensor | None]


class _Depth(threading.local):
    num = 0  # of calls in this thread that are ours already
    num_pieces = 0  # of them those that compute a piece


_depth = _Depth()


def is_inside() -> bool:
    """Somewhere below a call that is ours: a module that is outermost at other times."""
    return _depth.num > 0


def is_in_pieces() -> bool:
    return _depth.num_pieces > 0


class PiecewiseCall:
    """`is_random`: the module draws, so the whole batch's numbers are recorded and given out to the pieces."""

    def __init__(self, call: Any, cut: Cut, args: Any, kwargs: Any, device: str, is_random: bool) -> None:
        self._call = call
        self._cut = cut
        self._frame = frame_of((args, kwargs))
        self._device = device
        self._rng_state = RngState(device)
        self._climate = [(kind, torch.get_autocast_dtype(kind)) for kind in {"cpu", device} if _is_cast(kind)]
        self._draws: list[torch.Tensor] | None = None
        self._kept: tuple[Tensors, list[torch.Tensor]] | None = None  # leaves and results of a graph that was kept
        self.is_random = is_random
        self.num_pieces = 1
        self.on_shortage: Callable[[int], None] | None = None  # told into how many pieces: then it is redone
        self.on_end: Callable[[bool], None] = lambda is_survived: None  # of a backward pass
        self.on_twice: Callable[[], None] = lambda: None  # gradients of gradients are wanted

    # --- forward ---------------------------------------------------------------------------------------------------

    def keep(self, tensors: Tensors) -> Any:
        """As the script would have called it, its graph kept below ours."""
        leaves = _leaves(tensors)
        with torch.enable_grad():
            result = self._run(leaves)
        self._kept = (leaves, tensors_in(result))
        self.is_random = not self._rng_state.is_as_now()
        return filled(result, [one.detach() for one in self._kept[1]])

    def compute(self, tensors: Tensors, num_pieces: int) -> Any:
        """The results without a graph."""
        self.num_pieces = num_pieces
        if self.is_random:
            return self._record(tensors)
        spans = bounds(self._cut.length(tensors), num_pieces)
        with torch.no_grad():
            result = joined([self._run(self._cut.piece(tensors, *span)) for span in spans], spans)
        self._forget_casts()
        if self._rng_state.is_as_now():
            return result
        self.rewind()  # it drew this time: dropout that was switched on later
        self.is_random = True
        return self._record(tensors)

    def rewind(self) -> None:
        self._rng_state.put_back()

    def _record(self, tensors: Tensors) -> Any:
        with torch.no_grad(), RandomRecorder() as recording:
            result = self._run(tensors)
        self._draws = recording.draws
        self._forget_casts()
        # A view that was made here could not be changed in place by the script.
        return filled(result, [one.clone() if one._is_view() else one for one in tensors_in(result)])

    def _forget_casts(self) -> None:
        """Autocast keeps the weights that it cast, and these have no gradient."""
        if self._climate:
            torch.clear_autocast_cache()

    # --- backward --------------------------------------------------------------------------------------------------

    def gradients(self, tensors: Tensors, weights: Tensors, arrived: Gradients) -> Gradients:
        """Of tensors and weights, for what arrived at the results."""
        if torch.is_grad_enabled():  # create_graph=True: they must be differentiable themselves
            self.on_twice()
            return self._differentiable(tensors, weights, arrived)
        now = RngState(self._device)
        found: Gradients | None = None
        try:
            with _muted(weights):
                found = self._from_kept(weights, arrived) or self._from_pieces(tensors, weights, arrived)
                return found
        finally:
            now.put_back()
            self.on_end(found is not None)

    def _from_kept(self, weights: Tensors, arrived: Gradients) -> Gradients | None:
        kept, self._kept = self._kept, None  # a second backward pass computes it again
        if kept is None:
            return None
        try:
            return _grad(kept[1], arrived, [*kept[0], *weights])
        except Exception as fault:
            if self.on_shortage is None or not is_shortage(fault):
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
                if self.on_shortage is None or not is_shortage(fault) or self.num_pieces >= length:
                    raise
            self._halve()

    def _halve(self) -> None:
        self.num_pieces *= 2
        make_room(self._device)
        assert self.on_shortage is not None
        self.on_shortage(self.num_pieces)

    def _sum(self, tensors: Tensors, weights: Tensors, arrived: Gradients, spans: list[tuple[int, int]]) -> Gradients:
        if self.is_random and self._draws is None and len(spans) > 1:
            self.rewind()
            with self._as_then():
                self._record(tensors)
        totals: Gradients = [None] * len(tensors)
        rows: list[Gradients] = [[] for _ in tensors]
        held = [weight.grad for weight in weights]
        _set_gradients(weights, [None] * len(weights))  # torch adds up there, weight by weight, in the least memory
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
        self.rewind()  # Python's and numpy's numbers, too, are those of the first time
        replaying = None
        if self.is_random and not is_whole:
            assert self._draws is not None
            replaying = RandomReplay(self._draws, start, stop, self._cut.length(tensors))
        _depth.num_pieces += 1
        try:
            with self._as_then(), replaying or contextlib.nullcontext():
                results = tensors_in(self._run(leaves))
        finally:
            _depth.num_pieces -= 1
        if replaying is not None and not replaying.is_used_up():
            raise RefusedError("a piece of the batch draws fewer random numbers than the whole")
        parts: Gradients = [None if one is None or is_whole else one[start:stop] for one in arrived]
        _accumulate(results, arrived if is_whole else parts, [*leaves, *weights])
        return [leaf.grad for leaf in leaves]

    def _differentiable(self, tensors: Tensors, weights: Tensors, arrived: Gradients) -> Gradients:
        now = RngState(self._device)
        self.rewind()
        try:
            with self._as_then(), _muted(weights):
                results = tensors_in(self._run(tensors))
                return _grad(results, arrived, [*tensors, *weights], is_twice=True)
        finally:
            now.put_back()

    # --- both ------------------------------------------------------------------------------------------------------

    def _run(self, tensors: Tensors) -> Any:
        args, kwargs = filled(self._frame, tensors)
        _depth.num += 1
        try:
            return self._call(*args, **kwargs)
        finally:
            _depth.num -= 1

    @contextlib.contextmanager
    def _as_then(self) -> Iterator[None]:
        """Under the autocast of the forward pass; gradients on."""
        with contextlib.ExitStack() as stack:
            then = dict(self._climate)
            for kind in {"cpu", self._device}:
                if kind in then:
                    stack.enter_context(torch.autocast(kind, dtype=then[kind], cache_enabled=False))
                elif _is_cast(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            stack.enter_context(torch.enable_grad())
            yield


class _Passage(torch.autograd.Function):
    """From the weights and the inputs to the results in one step."""

    @staticmethod
    def forward(ctx: Any, again: PiecewiseCall, results: list[torch.Tensor], num_tensors: int, *given: Any) -> Any:
        learning, *learners = given
        ctx.again, ctx.num_tensors = again, num_tensors
        ctx.save_for_backward(*learners)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(one for one, learns in zip(results, learning, strict=True) if not learns))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *arrived: Any) -> Any:
        saved = ctx.saved_tensors
        tensors, weights = saved[: ctx.num_tensors], saved[ctx.num_tensors :]
        found = ctx.again.gradients(tensors, weights, list(arrived))
        return None, None, None, None, *found


def tied(again: PiecewiseCall, result: Any, learning: Sequence[bool], tensors: Tensors, weights: Tensors) -> Any:
    """The results as the script gets them, their gradients ours to compute. `learning`: which of them had any."""
    results = tensors_in(result)
    if len(learning) != len(results):
        learning = [one.is_floating_point() for one in results]
    outcome = _Passage.apply(again, results, len(tensors), learning, *tensors, *weights)  # type: ignore[no-untyped-call]
    return filled(result, outcome)


def is_shortage(fault: BaseException) -> bool:
    """Whether memory may have run out, on the host or on a device."""
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(fault, RuntimeError) and hints_at_shortage(str(fault))


def make_room(device: str) -> None:
    """After the frames of what failed are gone. On the host the heap keeps what was freed, and what a library below
    torch then asks the system for may find no room beside it."""
    gc.collect()
    return_freed()
    if device not in ("cpu", "meta"):
        getattr(torch.get_device_module(device), "empty_cache", lambda: None)()


def _leaves(tensors: Tensors, like: Tensors = ()) -> list[torch.Tensor]:
    return [
        one.detach().requires_grad_(model.requires_grad) for one, model in zip(tensors, like or tensors, strict=True)
    ]


def _grad(results: Tensors, arrived: Gradients, wanted: Tensors, is_twice: bool = False) -> Gradients:
    """None for whatever asks for none or gets none."""
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
        raise RefusedError("computed again, its results have another size")
    return pairs


def _set_gradients(weights: Tensors, gradients: Gradients) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient


@contextlib.contextmanager
def _muted(weights: Tensors) -> Iterator[None]:
    """Hooks on weights are called once, for the whole gradient, when it leaves us."""
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
