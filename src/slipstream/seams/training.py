"""The seams of the training itself: backward pass, optimizer, learning-rate scheduler."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from slipstream.records import EventKind, Optimizer, Site
from slipstream.seams.listener import Listener, Token
from slipstream.seams.modules.fast_path import shorten_backward, shorten_step
from slipstream.seams.patching import Patches
from slipstream.seams.user_code import current_site, definition_of, site_of, user_frame


class BackwardSeam:
    """Backward passes: `Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def install(self, patches: Patches) -> None:
        for name in ("backward", "grad"):
            seam = f"autograd.{name}"
            front = functools.partial(shorten_backward, patches=patches, listener=self._listener, seam=seam)
            patches.around(torch.autograd, name, seam, self._before, self._after, self._listener.abandon, front)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        return self._listener.enter("backward")

    def _after(self, token: Token | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._listener.leave(token, "backward", -1)


class OptimizerSeam:
    """Every optimizer's step, including steps with a closure, through torch's own global hooks."""

    def __init__(self, listener: Listener, on_new_optimizer: Callable[[], None] = lambda: None) -> None:
        """`on_new_optimizer` is called at the first step of each optimizer."""
        self._listener = listener
        self._on_new_optimizer = on_new_optimizer
        self._counter = itertools.count()
        self._idents: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._sites: weakref.WeakKeyDictionary[Any, Site | None] = weakref.WeakKeyDictionary()
        self._open: dict[int, Token | None] = {}
        self._shortcut = listener.shortcut
        self.optimizers: list[weakref.ref[Any]] = []
        self.was_made = False  # Whether the script has made an optimizer, which may no longer exist

    def install(self, patches: Patches) -> None:
        patches.around(torch.optim.Optimizer, "__init__", "optimizer.init", self._before_init, self._after_init)
        before, after = shorten_step(
            patches,
            self._listener,
            patches.guard("optimizer.step.before", self._before_step),
            patches.guard("optimizer.step.after", self._after_step),
        )
        patches.on_close(register_optimizer_step_pre_hook(before).remove)
        patches.on_close(register_optimizer_step_post_hook(after).remove)

    def has_any(self) -> bool:
        """Whether an optimizer of the script exists now."""
        return len(self._sites) > 0

    def _before_init(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Site | None:
        frame = user_frame(sys._getframe(1))
        # The `super().__init__(...)` line of a user-defined class is not where the script makes the optimizer.
        while frame is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is args[0]:
            frame = user_frame(frame.f_back)
        return site_of(frame)

    def _after_init(self, site: Site | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._sites[args[0]] = site
        self.was_made = True
        self._shortcut.optimizer = (0, -1)  # The new optimizer may have the id of a deleted one.

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._open[id(optimizer)] = self._listener.enter("optimizer")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        token = self._open.pop(id(optimizer), None)
        if token is not None:
            self._listener.leave(token, "optimizer", self._meet(optimizer))
            self._listener.pulse()

    def _meet(self, optimizer: Any) -> int:
        if self._shortcut.optimizer[0] == id(optimizer):
            return self._shortcut.optimizer[1]
        ident = self._idents.get(optimizer)
        if ident is None:
            ident = self._idents[optimizer] = next(self._counter)
            # If an optimizer was made before the seam was installed, its site is the line that steps it.
            site = self._sites[optimizer] if optimizer in self._sites else current_site()
            self._listener.meet(read_optimizer(optimizer, ident, site))
            self.optimizers.append(weakref.ref(optimizer))
            self._on_new_optimizer()
        self._shortcut.optimizer = (id(optimizer), ident)
        return ident


def read_optimizer(optimizer: Any, ident: int, site: Site | None) -> Optimizer:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    defaults = optimizer.defaults
    device = parameters[0].device.type if parameters else "cpu"
    return Optimizer(
        ident=ident,
        class_name=type(optimizer).__name__,
        site=site,
        num_tensors=len(parameters),
        num_parameters=sum(p.numel() for p in parameters),
        fused=defaults.get("fused"),
        foreach=defaults.get("foreach"),
        can_fuse="fused" in defaults and device in ("cpu", "cuda", "xpu", "mps"),
        device=device,
        step_site=definition_of(getattr(inspect.unwrap(type(optimizer).step), "__code__", None)),
    )


class SchedulerSeam:
    """Steps of learning-rate schedulers. They are only recorded."""

    kind: EventKind = "scheduler"

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def install(self, patches: Patches) -> None:
        from torch.optim.lr_scheduler import LRScheduler

        patches.around(LRScheduler, "step", "scheduler.step", self._before, self._after, self._listener.abandon)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        return self._listener.enter("other")

    def _after(self, token: Token | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._listener.leave(token, self.kind, -1)
