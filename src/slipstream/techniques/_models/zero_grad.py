"""Makes zero_grad free gradients where the script asks for zeros. After the next backward pass, or before the next
update, gradients that are still missing become zeros. An optimizer would treat a missing gradient differently."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slipstream.techniques._core.context import is_backward

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext


class DroppedGradients:
    def __init__(self, context: ApplyContext) -> None:
        self._context = context
        # Parameters whose gradient the script expects to be zero.
        self._owed: dict[int, weakref.ref[torch.Tensor]] = {}
        self._is_on = True

    def install(self) -> None:
        patches = self._context.patches
        for owner, parameters in ((torch.optim.Optimizer, _of_optimizer), (torch.nn.Module, _of_module)):
            patches.replace(owner, "zero_grad", self._wrap(owner.zero_grad, parameters))
        patches.around(torch.autograd, "backward", "gradients.backward", None, self._after)
        hook = patches.guard("gradients.update", self._after)
        patches.on_close(register_optimizer_step_pre_hook(hook).remove)
        patches.on_close(self._put_back)

    def _wrap(self, original: Callable[..., Any], parameters: Callable[[Any], Iterable[torch.Tensor]]) -> Any:
        def zero_grad(owner: Any, set_to_none: bool = True) -> Any:
            if not self._is_on or torch.compiler.is_compiling() or is_backward():
                return original(owner, set_to_none)
            given = list(parameters(owner))
            if set_to_none:
                for parameter in given:
                    self._owed.pop(id(parameter), None)
                self._context.decline("the script already sets its gradients to None")
                return original(owner, set_to_none)
            for parameter in given:
                self._drop(parameter)
            return original(owner, set_to_none)  # This zeroes gradients that were not freed, such as views.

        return zero_grad

    def _drop(self, parameter: torch.Tensor) -> None:
        grad = parameter.grad
        if grad is None or grad._base is not None or grad.is_sparse or grad.layout != torch.strided:
            return
        if not self._owed:
            self._context.changed("zero_grad(set_to_none=False) drops gradients")
        parameter.grad = None
        self._owed[id(parameter)] = weakref.ref(parameter)

    def _after(self, *_: Any) -> None:
        if not self._owed or is_backward():  # Inside a nested backward pass, the outer pass is still running.
            return
        for reference in self._owed.values():
            parameter = reference()
            if parameter is not None and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._owed.clear()

    def _put_back(self) -> None:
        self._is_on = False
        self._after()


def _of_optimizer(optimizer: Any) -> Iterable[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _of_module(module: Any) -> Iterable[torch.Tensor]:
    return list(module.parameters())
