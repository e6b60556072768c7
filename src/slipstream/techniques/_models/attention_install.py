"""Finds modules with hand-written attention and lets them use the fused kernel. Before that, the fused kernel must give
the same result and gradients on the script's own batch. A module without verified attention stays as it is."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as hooks

from slipstream.seams.nested import map_tensors
from slipstream.techniques._models.attention_pattern import AttentionCall, Deferred, settle
from slipstream.techniques._recompute.module_snapshot import ModuleSnapshot

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}  # Relative to the norm. In lower precision it is 2e-2.


class AttentionSearch:
    """Wraps an outermost module and searches its first training call for attention. `FusedAttention` then wraps the
    modules in which attention was found and verified."""

    def __init__(self, context: ApplyContext, module: torch.nn.Module) -> None:
        self._context = context
        self._module = weakref.ref(module)
        self._is_done = False
        self._stack: list[torch.nn.Module] = []
        self._owners: dict[int, torch.nn.Module] = {}

    def call(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._module()
        if self._is_done or not (module.training and torch.is_grad_enabled()):
            return call(*args, **kwargs)
        self._is_done = True
        with ModuleSnapshot(module) as snapshot:
            try:
                result = self._look(call, args, kwargs)
            except Exception as fault:  # Our error, or the script's, which the call below raises again.
                snapshot.rewind()
                self._context.decline(f"the search for attention failed: {type(fault).__name__}: {fault}")
                return call(*args, **kwargs)
        for owner in self._owners.values():
            self._context.wrap_call(owner, FusedAttention(self._context, owner).call)
        if not self._owners:
            self._context.decline(f"no hand-written attention was found in {type(module).__name__}")
        self._owners.clear()
        return result

    def _look(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handles = [
            hooks.register_module_forward_pre_hook(lambda module, args: self._stack.append(module)),
            hooks.register_module_forward_hook(lambda module, args, result: _drop_last(self._stack), always_call=True),
        ]
        try:
            with AttentionCall(self._examine, self._context.decline, lambda: list(self._stack)):
                return map_tensors(call(*args, **kwargs), settle)
        finally:
            for handle in handles:
                handle.remove()
            self._stack.clear()

    def _examine(self, weights: Deferred, values: torch.Tensor, manual: Callable[[], torch.Tensor]) -> torch.Tensor:
        result = manual()
        error = _disagreement(weights, values, result)
        allowed = _TOLERANCE.get(result.dtype, 2e-2)
        shared = [one for one, other in zip(weights.place, self._stack, strict=False) if one is other]
        if error is None or not error <= allowed:
            size = "not a number" if error is None else f"{error:.1e} of the norm, {allowed:.0e} allowed"
            self._context.decline(f"the result of the fused kernel differs from that of the script's attention: {size}")
        elif shared:
            self._owners[id(shared[-1])] = shared[-1]
        return result


def _disagreement(weights: Deferred, values: torch.Tensor, result: torch.Tensor) -> float | None:
    """Compares the fused kernel with the script's attention. Returns the largest difference of results and gradients,
    relative to their norms. Returns None if a difference is not a number."""
    plan = weights.plan
    sources = [plan.query, plan.keys, values]
    with torch.enable_grad():
        copies = [source.detach().requires_grad_() for source in sources]
        fused = plan.but(query=copies[0], keys=copies[1]).fuse(copies[2])
        wanted = [index for index, source in enumerate(sources) if source.requires_grad]
        start = result.detach()
        pairs = [(result.detach(), fused.detach())]
        if wanted and result.requires_grad:
            one = torch.autograd.grad(result, [sources[i] for i in wanted], start, retain_graph=True)
            other = torch.autograd.grad(fused, [copies[i] for i in wanted], start.to(fused.dtype))
            pairs += zip(one, other, strict=True)
    errors = [float((a - b).norm() / a.norm().clamp_min(1e-30)) for a, b in pairs]
    return None if any(error != error for error in errors) else max(errors)


class FusedAttention:
    """Wraps a module in which attention was found and verified."""

    def __init__(self, context: ApplyContext, module: torch.nn.Module) -> None:
        self._context = context
        self._name = type(module).__name__
        self._is_on = True
        self._is_said = False

    def call(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._is_on or torch.compiler.is_compiling():
            return call(*args, **kwargs)
        try:
            with AttentionCall(self._fuse, self._context.decline):
                return map_tensors(call(*args, **kwargs), settle)
        except Exception as fault:  # Our error, or the script's, which the call below raises again.
            self._is_on = False
            self._context.decline(f"{self._name} uses its own attention again: {type(fault).__name__}: {fault}")
            return call(*args, **kwargs)

    def _fuse(self, weights: Deferred, values: torch.Tensor, manual: Callable[[], torch.Tensor]) -> torch.Tensor:
        if not self._is_said:
            self._is_said = True
            self._context.changed(f"attention of {self._name}")
        return weights.plan.fuse(values)


def _drop_last(stack: list[torch.nn.Module]) -> None:
    if stack:
        stack.pop()
