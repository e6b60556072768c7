"""Replaces the update of the script's Adam and AdamW by torchao's, whose state has eight bits. The script keeps its
optimizer object, so schedulers can set its learning rate. Checkpoints hold full-precision numbers and load without
torchao."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

_COPIED = ("betas", "eps", "weight_decay")
_SIGNED = {"exp_avg": True, "exp_avg_sq": False}


def find_classes() -> dict[str, Any] | None:
    """Returns torchao's classes by the torch class that they replace, or None if torchao is not installed."""
    try:
        from torchao.optim import Adam8bit, AdamW8bit
    except ImportError:
        return None
    return {"Adam": Adam8bit, "AdamW": AdamW8bit}


class EightBit:
    """Replaces `step` of Adam and AdamW. The first step of an optimizer decides whether torchao computes the updates of
    this optimizer."""

    def __init__(self, context: ApplyContext, classes: dict[str, Any], why_not: Callable[[Any], str]) -> None:
        self._context = context
        self._classes = classes
        self._why_not = why_not
        self._inner: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # None: not replaced

    def install(self) -> None:
        for owner in (torch.optim.Adam, torch.optim.AdamW):
            if "step" in vars(owner):
                step: Any = torch.optim.Optimizer.profile_hook_step(self._wrap(_bare(owner.step)))
                step.hooked = True  # Tells torch that the step is wrapped already.
                self._context.patches.replace(owner, "step", step)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(optimizer: Any, closure: Any = None) -> Any:
            if optimizer not in self._inner:
                try:
                    self._inner[optimizer] = self._adopt(optimizer)
                except Exception as fault:
                    self._inner[optimizer] = None
                    self._context.decline(f"{type(fault).__name__}: {fault}")
            inner = self._inner[optimizer]
            if inner is None:
                return original(optimizer, closure)
            _tell(inner, optimizer)
            return _bare(type(inner).step)(inner, closure)  # The hooks of the script's optimizer have already run.

        return step

    def _adopt(self, optimizer: Any) -> Any:
        reason = self._why_not(optimizer)
        if reason:
            self._context.decline(reason)
            return None
        inner = make_inner(optimizer, self._classes)
        patches = self._context.patches
        patches.on_close(optimizer.register_state_dict_post_hook(_widen).remove)
        patches.on_close(optimizer.register_load_state_dict_post_hook(lambda one: self._after_load(one)).remove)
        self._context.changed(f"the state of {type(optimizer).__name__} in eight bits")
        return inner

    def _after_load(self, optimizer: Any) -> None:
        inner = self._inner.get(optimizer)
        if inner is not None:
            inner.state = optimizer.state
            narrow(inner)


def make_inner(optimizer: Any, classes: dict[str, Any]) -> Any:
    groups = [{"params": list(group["params"]), **_hyper(group)} for group in optimizer.param_groups]
    inner = classes[type(optimizer).__name__](groups)
    inner.state = optimizer.state
    narrow(inner)
    return inner


def narrow(inner: Any) -> None:
    """Converts state that was loaded from a checkpoint to eight bits."""
    for parameter, state in inner.state.items():
        for name, is_signed in _SIGNED.items():
            value = state.get(name)
            if type(value) is torch.Tensor:
                buffer = inner._new_buffer(parameter, is_signed)
                state[name] = buffer.copy_(value) if type(buffer) is not torch.Tensor else value
        if "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device="cpu")


def _widen(optimizer: Any, state_dict: dict[str, Any]) -> None:
    for key, state in list(state_dict["state"].items()):
        full = {name: one.dequantize() if hasattr(one, "codes") else one for name, one in state.items()}
        state_dict["state"][key] = full


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    return {"lr": float(group["lr"]), **{name: group[name] for name in _COPIED}}


def _tell(inner: Any, optimizer: Any) -> None:
    """Copies to `inner` the settings that the script or a scheduler has changed."""
    for number, group in enumerate(optimizer.param_groups):
        if number == len(inner.param_groups):
            inner.add_param_group({"params": list(group["params"]), **_hyper(group)})
        own = inner.param_groups[number]
        own["lr"].fill_(float(group["lr"]))
        own.update({name: group[name] for name in _COPIED})


def _bare(step: Any) -> Any:
    """Returns the step without the hooks that torch wraps around it."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step
