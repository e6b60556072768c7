"""Compiles the call of one model while the model trains. The compiler is configured so that a model that cannot be
compiled runs uncompiled."""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from slipstream.seams.nested import map_tensors
from slipstream.techniques._recompute.module_snapshot import ModuleSnapshot

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

_numbers = itertools.count()


class Compiled:
    """The compiled call of one model. The module is an argument of the compiled function, so the function does not keep
    the module alive. The function calls the module's `_call_impl`: hooks then run, containers such as nn.Sequential can
    be compiled, and our own wrapper is skipped."""

    def __init__(self, context: ApplyContext, module: torch.nn.Module, mode: str) -> None:
        self._context = context
        self._module = weakref.ref(module)
        self._mode = mode
        self._is_on = True
        self._is_captured = False
        self._function: Any = torch.compile(_fresh(_run), mode=mode)

    def call(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._module()
        if not (self._is_on and module.training and torch.is_grad_enabled()):
            return call(*args, **kwargs)
        if self._is_captured:
            result = self._function(module, *args, **kwargs)
        else:
            result = self._first_call(module, call, args, kwargs)
        if self._mode == "reduce-overhead":  # CUDA graphs write the next step's outputs into the same memory
            result = map_tensors(result, lambda tensor: tensor.clone())
        return result

    def _first_call(self, module: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from torch._dynamo.exc import TorchDynamoException  # Imported here because the import is slow.

        before = _num_graphs()
        with ModuleSnapshot(module) as snapshot:
            try:
                result = self._function(module, *args, **kwargs)
            except TorchDynamoException as fault:
                snapshot.rewind()
                self._step_aside(f"{type(fault).__name__}: {str(fault).splitlines()[0]}")
                return call(*args, **kwargs)
        num_graphs = _num_graphs() - before
        if num_graphs:
            self._is_captured = True
            self._context.changed(f"{type(module).__name__} compiled into {num_graphs} graph{'s' * (num_graphs > 1)}")
        else:
            self._step_aside(f"the compiler captured no part of {type(module).__name__}")
        return result

    def _step_aside(self, reason: str) -> None:
        self._is_on = False
        self._context.decline(reason)


def _run(module: Any, *args: Any, **kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)


def _fresh(function: Any) -> Any:
    """Returns the same function with a new code object. The compiler counts recompilations per code object, and two
    models must not share one limit."""
    name = f"run_{next(_numbers)}"
    return type(function)(function.__code__.replace(co_name=name), function.__globals__, name)


def _num_graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"].get("unique_graphs", 0))


def configure(context: ApplyContext) -> None:
    """Configures the compiler. Code that cannot be compiled runs uncompiled. The backward pass is compiled together
    with the forward pass: if compiling failed in the script's call of backward, the call could not be repeated
    uncompiled."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as autograd
    import torch._inductor.config as inductor

    wanted = [(dynamo, "suppress_errors", True), (autograd, "force_non_lazy_backward_lowering", True)]
    if context.is_proof:
        wanted.append((inductor, "fallback_random", True))
    for config, name, value in wanted:
        before = getattr(config, name, None)
        if before is not None and before != value:
            setattr(config, name, value)
            context.patches.on_close(functools.partial(setattr, config, name, before))
