"""Updates all parameters of a group in one kernel. Unfused optimizers make one pass over memory for every term of the
formula.

Helps where the update takes a noticeable part of the step, as with many parameters or small batches. Hurts rarely: on
some CPUs, and for a few large tensors, the fused kernel is no faster. Checkpoints contain the script's own flags and
load without slipstream.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from slipstream.records import Edit, Optimizer, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    import torch

    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Fused optimizer",
    seam="optimizer",
    causes=("unfused_optimizer",),
    numerics="reordered",
    claims=("optimizer kernels",),
)
_CLASSES = ("Adam", "AdamW", "SGD", "Adagrad")
_TAKE_SPARSE = ("SGD", "Adagrad")


def applies(observation: Observation) -> Answer:
    optimizer = observation.optimizer
    if optimizer is None:
        return no("no optimizer was seen")
    if optimizer.fused:
        return already("the script's optimizer is fused already")
    # With foreach=False the script excludes the foreach implementation, but not the fused one.
    if optimizer.fused is False or optimizer.foreach:
        return no("the script selects another implementation")
    if not optimizer.can_fuse:
        return no(f"{optimizer.class_name} has no fused implementation on {optimizer.device}")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    def consider(optimizer: torch.optim.Optimizer) -> None:
        reason = _why_not(optimizer)
        if reason:
            context.decline(reason)
        elif _kind(optimizer) in _TAKE_SPARSE and not _has_gradients(optimizer):
            # The script steps with a closure. Whether gradients are sparse is known only after the closure has run.
            handle = optimizer.register_step_post_hook(lambda optimizer, args, kwargs: later(optimizer, handle))
        else:
            fuse(optimizer)

    def later(optimizer: Any, handle: Any) -> None:
        handle.remove()
        try:
            reason = _why_not(optimizer)
            context.decline(reason) if reason else fuse(optimizer)
        except Exception as fault:  # This code runs inside the script's own step, which must not fail.
            context.decline(f"{type(fault).__name__}: {fault}")

    def fuse(optimizer: torch.optim.Optimizer) -> None:
        Fusion(optimizer).install(context)
        context.changed(f"{type(optimizer).__name__} fused")

    context.on_optimizer(consider)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    """Returns an edit for every optimizer that can be fused, because `apply` fuses all of them."""
    seen = [optimizer for optimizer in observation.session.optimizers if optimizer.can_fuse and not optimizer.fused]
    return [_edit(optimizer) for optimizer in seen]


def _edit(optimizer: Optimizer) -> Edit:
    if optimizer.site is None:
        reason = "the line that builds the optimizer was not found"
        return Edit("fused_optimizer", "by_hand", None, text="fused=True", reason=reason)
    if optimizer.foreach:
        reason = "the line says foreach=True, and torch does not accept foreach and fused together"
        return Edit("fused_optimizer", "by_hand", optimizer.site, text="fused=True", reason=reason)
    kind, now = optimizer.class_name, repr(optimizer.fused)
    return Edit("fused_optimizer", "argument", optimizer.site, kind, argument="fused", text="True", observed=now)


class Fusion:
    """Sets the `fused` flags of one optimizer. They are True while the optimizer steps, and have the script's own
    values in checkpoints."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._default = optimizer.defaults.get("fused")
        self._flags: list[Any] = []

    def install(self, context: ApplyContext) -> None:
        optimizer = self._optimizer
        self._switch_on()
        optimizer.defaults["fused"] = True  # Used for groups that are added later
        context.patches.on_close(self._put_back)
        context.patches.on_close(optimizer.register_state_dict_post_hook(self._after_state_dict).remove)
        context.patches.on_close(optimizer.register_load_state_dict_post_hook(self._after_load).remove)

    def _switch_on(self) -> None:
        self._flags = [group.get("fused") for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["fused"] = True
            for parameter in group["params"]:
                if parameter in self._optimizer.state:
                    _adapt(self._optimizer.state[parameter], parameter)

    def _put_back(self) -> None:
        self._optimizer.defaults["fused"] = self._default
        for index, group in enumerate(self._optimizer.param_groups):
            group["fused"] = self._flag(index)

    def _flag(self, index: int) -> Any:
        return self._flags[index] if index < len(self._flags) else self._default

    def _after_state_dict(self, optimizer: Any, state_dict: dict[str, Any]) -> None:
        for index, group in enumerate(state_dict["param_groups"]):
            group["fused"] = self._flag(index)
        for key, state in state_dict["state"].items():  # An unfused optimizer keeps the step count on the host.
            step = state.get("step") if isinstance(state, dict) else None
            if step is not None and hasattr(step, "device") and step.device.type != "cpu":
                state_dict["state"][key] = {**state, "step": step.cpu()}

    def _after_load(self, optimizer: Any) -> None:
        self._switch_on()


def _adapt(state: dict[str, Any], parameter: torch.Tensor) -> None:
    """Converts state that unfused steps have left. The step count moves to the device that the kernel needs. The
    moments get the parameter's layout, because the kernel reads moments and parameter with one index."""
    import torch

    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            continue
        if name == "step":
            state[name] = value.to(device=parameter.device, dtype=torch.float32)
        elif value.shape == parameter.shape and value.stride() != parameter.stride():
            state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _why_not(optimizer: torch.optim.Optimizer) -> str:
    kind = _kind(optimizer)
    if not kind:
        return f"{type(optimizer).__name__} has no fused implementation"
    for group in optimizer.param_groups:
        if group.get("fused") is not None or group.get("foreach"):
            return "the script selects an implementation"
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is not None and grad.is_sparse:
                return "the gradients are sparse"
            if grad is not None and grad.stride() != parameter.stride():
                return "the gradients and the parameters have different memory layouts"
        reason = _ask_torch(kind, group)
        if reason:
            return reason
    return ""


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """Returns the name of the torch class whose step this is, or "" if the step is not torch's own."""
    owner = next(kind for kind in type(optimizer).__mro__ if "step" in vars(kind))
    is_torchs = owner.__module__.startswith("torch.optim.") and owner.__name__ in _CLASSES
    known = next((kind.__name__ for kind in type(optimizer).__mro__ if kind.__name__ in _CLASSES), "")
    return known if is_torchs else ""


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _ask_torch(kind: str, group: dict[str, Any]) -> str:
    """Returns why torch rejects a fused optimizer with these hyperparameters, or "". Torch's own checks run on an
    optimizer of one number."""
    import torch
    from torch.optim.optimizer import _device_dtype_check_for_fused

    make = getattr(torch.optim, kind)
    known = set(inspect.signature(make.__init__).parameters) - {"self", "params", "fused", "foreach"}
    given = {name: value for name, value in group.items() if name in known}
    try:
        make([torch.nn.Parameter(torch.zeros(1))], **given, fused=True)
        for parameter in group["params"]:
            _device_dtype_check_for_fused(parameter)
    except (RuntimeError, ValueError) as refusal:
        return str(refusal)
    return ""
