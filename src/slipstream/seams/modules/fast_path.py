"""The fast path through the four seams of a plain step: request for a batch, module call, backward pass, optimizer
step. The fast path adds one Python frame per seam. Calls that do not meet its conditions take the slow path. This file
must not be in the list of files that dynamo skips. If dynamo inlines these functions into a graph, they disappear,
because they then only call the original."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from types import CodeType
from typing import Any, Protocol

import torch

from slipstream.seams.batches import count_samples
from slipstream.seams.listener import Listener
from slipstream.seams.patching import Passage, Patches, without_stack_level

Hook = Callable[[Any, Any, Any], None]


class CallListener(Protocol):
    def on_call(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Is called after a call of an outermost module, with the module and the arguments."""
        ...


class ObservedCalls(Protocol):
    """Holds the listener to the calls of modules. Calls that have a listener do not take the fast path."""

    call_listener: CallListener | None


@without_stack_level
def shorten_next(passage: Passage, patches: Patches, listener: Listener) -> Callable[[Any], Any]:
    """Returns the fast path of `__next__`, for the iterator that was used last."""
    original, slow_path, shortcut, emit = passage.original, passage.function, listener.shortcut, listener.emit
    now_ns = patches.register("loader.next.clock", listener.now_ns)

    def passing(iterator: Any) -> Any:
        last, ident, num_bytes = shortcut.input
        if (
            get_ident() != shortcut.thread
            or shortcut.phase != "other"
            or last != id(iterator)
            or num_bytes < 0
            or shortcut.is_supplying
        ):
            return slow_path(iterator)
        try:
            start_ns = now_ns()
            is_due = start_ns >= shortcut.long_ns
            if is_due:
                listener.count()  # If the script evaluates now, no optimizer step will count the steps for a while.
            else:
                shortcut.phase = "input"
        except Exception as fault:
            listener.bar_shortcut()
            passage.step_aside(fault)
            is_due = True
        if is_due:
            return slow_path(iterator)
        try:
            result = original(iterator)
        except BaseException:
            shortcut.phase = "other"
            raise
        try:
            emit(("input", ident, start_ns, now_ns(), count_samples(result), num_bytes))
            shortcut.phase = "other"
        except Exception as fault:
            listener.bar_shortcut()
            passage.step_aside(fault)
        return result

    return passing


@without_stack_level
def shorten_call(
    passage: Passage,
    patches: Patches,
    listener: Listener,
    observed: ObservedCalls,
    reference: Any,
    inner: Any,
    ident: int,
) -> Callable[..., Any]:
    """Returns the fast path of a module call, for a module in training mode. `inner` is the callable that the script
    compiled the module to, or None."""
    slow_path, shortcut, emit = passage.function, listener.shortcut, listener.emit
    is_compiling, is_grad_enabled = patches.is_compiling, torch.is_grad_enabled
    now_ns = patches.register("module.call.clock", listener.now_ns)

    def passing(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():  # Dynamo must not trace code of this package.
            return slow_path(*args, **kwargs)
        module = reference()
        if (
            get_ident() != shortcut.thread
            or shortcut.phase != "other"
            or observed.call_listener is not None
            or not listener.counts_samples
            or not module.training
        ):
            return slow_path(*args, **kwargs)
        call = module._call_impl if inner is None else inner
        try:
            start_ns = now_ns()
            shortcut.phase = "forward"
        except Exception as fault:
            listener.bar_shortcut()
            passage.step_aside(fault)
            return call(*args, **kwargs)
        try:
            result = call(*args, **kwargs)
        except BaseException:
            shortcut.phase = "other"
            raise
        try:
            emit(("forward", ident, start_ns, now_ns(), 0, 0, 0, is_grad_enabled(), True))
            shortcut.phase = "other"
        except Exception as fault:
            listener.bar_shortcut()
            passage.step_aside(fault)
        return result

    return passing


@without_stack_level
def shorten_backward(passage: Passage, patches: Patches, listener: Listener, seam: str) -> Callable[..., Any]:
    """Returns the fast path of a backward pass."""
    original, slow_path, shortcut, emit = passage.original, passage.function, listener.shortcut, listener.emit
    is_compiling = patches.is_compiling
    now_ns = patches.register(f"{seam}.clock", listener.now_ns)

    def passing(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        if get_ident() != shortcut.thread or shortcut.phase != "other":
            return slow_path(*args, **kwargs)
        try:
            start_ns = now_ns()
            shortcut.phase = "backward"
        except Exception as fault:
            listener.bar_shortcut()
            passage.step_aside(fault)
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            shortcut.phase = "other"
            raise
        try:
            emit(("backward", -1, start_ns, now_ns()))
            shortcut.phase = "other"
        except Exception as fault:
            listener.bar_shortcut()
            passage.step_aside(fault)
        return result

    return passing


def shorten_step(patches: Patches, listener: Listener, slow_before: Hook, slow_after: Hook) -> tuple[Hook, Hook]:
    """Returns two hooks, the fast path of an optimizer step for the optimizer that was stepped last. The second hook
    also reports the steps. Several short steps are reported together."""
    shortcut, emit, is_compiling = listener.shortcut, listener.emit, patches.is_compiling
    now_ns = patches.register("optimizer.step.clock", listener.now_ns)
    stepping, ident, start_ns = 0, -1, 0

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal stepping, ident, start_ns
        if is_compiling():
            return
        if stepping == id(optimizer):  # The last step of this optimizer raised. torch calls no hook in that case.
            stepping, shortcut.phase = 0, "other"
        last, its_ident = shortcut.optimizer
        if get_ident() != shortcut.thread or shortcut.phase != "other" or last != id(optimizer):
            return slow_before(optimizer, args, kwargs)
        try:
            start_ns = now_ns()
            stepping, ident, shortcut.phase = last, its_ident, "optimizer"
        except Exception as fault:
            listener.bar_shortcut()
            patches.complain("optimizer.step", fault)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal stepping
        if is_compiling():
            return
        if stepping != id(optimizer):
            return slow_after(optimizer, args, kwargs)
        try:
            stepping, shortcut.phase = 0, "other"
            end_ns = now_ns()
            emit(("optimizer", ident, start_ns, end_ns))
            if end_ns >= shortcut.due_ns:
                listener.count()
                listener.pulse()
        except Exception as fault:
            listener.bar_shortcut()
            patches.complain("optimizer.step", fault)

    return before, after


def codes() -> list[CodeType]:
    """Returns the code objects of the functions in this file that the script or torch calls. Dynamo must skip their
    frames."""
    makers = (shorten_next, shorten_call, shorten_backward, shorten_step)
    return [part for maker in makers for part in maker.__code__.co_consts if isinstance(part, CodeType)]
