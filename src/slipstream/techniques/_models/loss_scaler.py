"""Scales the loss although the script does not. A backward pass starts from a larger gradient, and its gradients are
divided again before it returns. Clipping, accumulation and logging in the script therefore see the usual values. An
update whose gradients overflowed is skipped. Scales are powers of two, so scaling causes no rounding."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from slipstream.seams.nested import walk_tensors

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext
    from slipstream.techniques._models.autocast import Switch

FIRST_SCALE = 2.0**16
GROWTH_INTERVAL = 2000  # Backward passes without an overflow before the scale is doubled
MOST = 2.0**24
_NUM_TRIALS = 3  # The first backward passes keep their graph, so they can be repeated with a smaller scale.


class LossScale:
    def __init__(self, context: ApplyContext, switch: Switch) -> None:
        self.scale = FIRST_SCALE
        self._grad_scale = FIRST_SCALE
        self.num_skipped = 0
        self._switch = switch
        self._num_good = 0
        self._num_passes = 0
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}
        self._bad: set[int] = set()  # Ids of leaves whose gradients overflowed since their last update
        self._stepping: list[Any] = []
        self._hidden: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._is_active = False
        self._backward = torch.autograd.backward
        self._grad = torch.autograd.grad
        self._install(context)

    def follow(self, module: torch.nn.Module) -> None:
        hooked = [layer for layer in module.modules() if layer._backward_hooks or layer._backward_pre_hooks]
        if hooked or any(_has_hooks(parameter) for parameter in module.parameters()):
            self._switch.turn_off("the script's own gradient hooks would see scaled gradients")
        self._register(module.parameters())

    def expect(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Registers the inputs of a call under autocast that collect gradients, because they are leaves too."""
        self._is_active = True
        self._register(tensor for _, tensor in walk_tensors([args, kwargs]) if tensor.requires_grad and tensor.is_leaf)

    def _install(self, context: ApplyContext) -> None:
        patches = context.patches
        backward, grad = inspect.signature(self._backward), inspect.signature(self._grad)

        def scaled_backward(*args: Any, **kwargs: Any) -> Any:
            if not self._is_wanted():
                return self._backward(*args, **kwargs)
            return self._run(backward.bind(*args, **kwargs).arguments)

        def scaled_grad(*args: Any, **kwargs: Any) -> Any:
            if not self._is_wanted():
                return self._grad(*args, **kwargs)
            return self._run_grad(grad.bind(*args, **kwargs).arguments)

        patches.replace(torch.autograd, "backward", scaled_backward)
        patches.replace(torch.autograd, "grad", scaled_grad)
        patches.around(torch.Tensor, "retain_grad", "technique.retain_grad", None, self._after_retain)
        before = patches.guard("technique.scale.before", self._before_step)
        after = patches.guard("technique.scale.after", self._after_step)
        patches.on_close(register_optimizer_step_pre_hook(before).remove)
        patches.on_close(register_optimizer_step_post_hook(after).remove)

    def _is_wanted(self) -> bool:
        return self._is_active and self._switch.is_on and not torch.compiler.is_compiling()

    # --- backward ---------------------------------------------------------------------------------------------------

    def _run(self, given: dict[str, Any]) -> None:
        roots = _listed(given["tensors"])
        if given.get("create_graph") or given.get("grad_variables") is not None:
            self._backward(**given)
            return
        is_trial = self._num_passes < _NUM_TRIALS and not torch.distributed.is_initialized()
        self._num_passes += 1
        if is_trial and not self._knows_all(roots):
            self._switch.turn_off("gradients flow into tensors that are neither parameters nor inputs of a model")
            self._backward(**given)
            return
        starts = _starts(roots, given.get("grad_tensors"))
        if is_trial:
            self._try(given, starts)
        else:
            self._pass(given, starts)

    def _try(self, given: dict[str, Any], starts: list[torch.Tensor | None]) -> None:
        """Repeats the pass with smaller scales until nothing overflows, or until the scale is 1. The first passes find
        a suitable scale in this way."""
        kept = {"retain_graph": True, **{name: value for name, value in given.items() if name != "retain_graph"}}
        earlier = [
            (leaf, leaf.grad, leaf.grad.clone() if leaf.grad is not None else None) for leaf in self._live_leaves()
        ]
        while not self._pass(kept, starts, may_repeat=self.scale > 1.0):
            for leaf, grad, values in earlier:
                leaf.grad = grad
                if grad is not None and values is not None:
                    grad.copy_(values)

    def _pass(self, given: dict[str, Any], starts: list[torch.Tensor | None], may_repeat: bool = False) -> bool:
        """Runs one backward pass with scaled gradients and divides the gradients again. Returns False if a gradient
        overflowed and the pass must be repeated."""
        scale = self.scale
        with torch.no_grad():
            _multiply(self._gradients(), scale)
        scaled = [start * scale if start is not None else None for start in starts]
        overflowed = False
        try:
            self._backward(**{**given, "grad_tensors": scaled})
        finally:
            with torch.no_grad():
                overflowed = _unscale(self._gradients(), scale)
        if not overflowed:
            self._num_good += 1
            if self._num_good % GROWTH_INTERVAL == 0:
                self.scale = min(MOST, self.scale * 2)
            return True
        self._num_good = 0
        self.scale = max(1.0, scale / 2)
        if not may_repeat:
            self._discard_gradients()
        return not may_repeat

    def _discard_gradients(self) -> None:
        """Writes zeros into gradients that cannot be used and skips the updates that would use them."""
        with torch.no_grad():
            for leaf in self._live_leaves():
                grad = leaf.grad
                if grad is not None and not bool(torch.isfinite(_dense(grad)).all()):
                    _dense(grad).zero_()
                    self._bad.add(id(leaf))
        if self._stepping:  # In a closure, the optimizer reads the gradients when this pass returns.
            self._hide(self._stepping[-1])

    def _run_grad(self, given: dict[str, Any]) -> Any:
        """Runs torch.autograd.grad with smaller scales until nothing overflows. The script gets the result."""
        starts = _starts(_listed(given["outputs"]), given.get("grad_outputs"))
        while True:
            # Every attempt would add to the retained gradients of activations. Nothing is scaled if an activation
            # retains its gradient.
            scale = 1.0 if any(not leaf.is_leaf for leaf in self._live_leaves()) else self._grad_scale
            scaled = [start * scale if start is not None else None for start in starts]
            kept = {"retain_graph": True} if scale > 1.0 else {}
            found = self._grad(**{**given, **kept, "grad_outputs": scaled})
            if scale == 1.0 or all(grad is None or bool(grad.isfinite().all()) for grad in found):
                return tuple(None if grad is None else grad / scale for grad in found)
            self._grad_scale = max(1.0, scale / 16)

    # --- updates ----------------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._register(_parameters(optimizer))
        self._stepping = [other for other in self._stepping if other is not optimizer] + [optimizer]
        self._hide(optimizer)

    def _hide(self, optimizer: Any) -> None:
        """Hides the gradients of an optimizer if one of them overflowed. Without gradients an optimizer leaves weights
        and moments as they are."""
        parameters = _parameters(optimizer)
        if self._bad.isdisjoint(map(id, parameters)):
            return
        self._bad.difference_update(map(id, parameters))
        self.num_skipped += 1
        hidden = self._hidden.setdefault(id(optimizer), [])
        for parameter in parameters:
            if parameter.grad is not None:
                hidden.append((parameter, parameter.grad))
                parameter.grad = None

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stepping = [other for other in self._stepping if other is not optimizer]
        for parameter, grad in self._hidden.pop(id(optimizer), ()):
            if parameter.grad is None:
                parameter.grad = grad

    # --- leaves -----------------------------------------------------------------------------------------------------

    def _register(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            known = self._leaves.get(id(tensor))
            if known is None or known() is not tensor:
                self._leaves[id(tensor)] = weakref.ref(tensor)

    def _live_leaves(self) -> list[torch.Tensor]:
        alive = [(key, reference()) for key, reference in self._leaves.items()]
        self._leaves = {key: self._leaves[key] for key, leaf in alive if leaf is not None}
        return [leaf for _, leaf in alive if leaf is not None]

    def _gradients(self) -> list[torch.Tensor]:
        unique = {id(leaf.grad): leaf.grad for leaf in self._live_leaves() if leaf.grad is not None}
        return [_dense(grad) for grad in unique.values()]

    def _after_retain(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._register(args[:1])

    def _knows_all(self, roots: list[torch.Tensor]) -> bool:
        """Whether all leaves of the graph are registered and have no hooks. New parameters are registered here. Any
        other unknown leaf might be a new tensor at every step, so it is not registered."""
        for leaf in _leaves_below(roots):
            if _has_hooks(leaf):
                return False
            if isinstance(leaf, torch.nn.Parameter):
                self._register([leaf])
            elif id(leaf) not in self._leaves:
                return False
        return True


def _leaves_below(roots: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves, seen = [], set()
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    while waiting:
        node: Any = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        waiting.extend(following for following, _ in node.next_functions if following is not None)
    return leaves


def _has_hooks(leaf: torch.Tensor) -> bool:
    return bool(leaf._backward_hooks or getattr(leaf, "_post_accumulate_grad_hooks", None))


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _starts(roots: list[torch.Tensor], given: Any) -> list[torch.Tensor | None]:
    """Returns the gradients that backward starts from. A root with several elements and no given gradient gets none, so
    torch rejects it."""
    starts = [None] * len(roots) if given is None else _listed(given)
    return [
        torch.ones_like(root) if start is None and root.requires_grad and root.numel() == 1 else start
        for root, start in zip(roots, starts, strict=True)
    ]


def _dense(grad: torch.Tensor) -> torch.Tensor:
    return grad._values() if grad.is_sparse else grad


def _multiply(grads: list[torch.Tensor], factor: float) -> None:
    if grads:
        torch._foreach_mul_(grads, factor)


def _unscale(grads: list[torch.Tensor], scale: float) -> bool:
    """Divides the gradients in place. Returns whether any element is not finite. Waits for the device once per device
    and dtype."""
    overflowed = False
    kinds: dict[Any, list[torch.Tensor]] = {}
    for grad in grads:
        kinds.setdefault((grad.device, grad.dtype), []).append(grad)
    for (device, _), group in kinds.items():
        found = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, found, torch.tensor(1.0 / scale, device=device))
        overflowed |= bool(found.item())
    return overflowed
