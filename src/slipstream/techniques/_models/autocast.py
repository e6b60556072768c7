"""Runs a model under autocast while it trains and converts its results back to fp32. If the script uses autocast
itself, ours is switched off permanently."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from slipstream.seams.nested import map_tensors
from slipstream.techniques._core.context import is_backward

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext
    from slipstream.techniques._models.loss_scaler import LossScale


class _Calls(threading.local):
    """Per-thread state, like autocast's own, because a backward pass recomputes checkpoints in other threads."""

    depth = 0  # Number of nested calls under our autocast
    is_entering = False


class Switch:
    """Whether our autocast may be used. All models of a script share one switch."""

    def __init__(self, context: ApplyContext, dtype: torch.dtype) -> None:
        self.context = context
        self.dtype = dtype
        self.is_on = True
        self.calls = _Calls()

    def turn_off(self, reason: str) -> None:
        self.is_on = False
        self.context.decline(reason)

    def watch_for_the_scripts_own(self) -> None:
        def after(token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            is_foreign = not self.calls.is_entering and getattr(args[0], "_enabled", False)
            if self.is_on and is_foreign and not self._is_recomputing(args[0]):
                self.turn_off("the script uses autocast itself")

        self.context.patches.around(torch.autocast, "__enter__", "technique.autocast", None, after)

    def is_ours(self, device: str) -> bool:
        """Whether the active autocast is ours: that of an enclosing model, or of a checkpoint that is recomputed."""
        return self.calls.depth > 0 or (is_backward() and torch.get_autocast_dtype(device) is self.dtype)

    def _is_recomputing(self, context: Any) -> bool:
        """Whether a checkpoint is being recomputed. The recomputation enters the autocast of the forward pass again,
        which is ours."""
        if is_backward() and getattr(context, "fast_dtype", None) is self.dtype:
            return True
        checkpoint = getattr(sys.modules.get("torch.utils.checkpoint"), "__file__", None)
        frame: Any = sys._getframe(1)
        for _ in range(4):  # The frame that entered autocast is below the frames of the patch.
            if frame is not None and frame.f_code.co_filename == checkpoint:
                return True
            frame = frame.f_back if frame is not None else None
        return False


class Precision:
    def __init__(
        self, switch: Switch, module: torch.nn.Module, device: str, dtype: torch.dtype, scale: LossScale | None
    ) -> None:
        self._switch = switch
        self._module = weakref.ref(module)
        self._device = device
        self._dtype = dtype
        self._scale = scale
        self._is_said = False

    def call(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._module()
        switch = self._switch
        if not (switch.is_on and module.training and torch.is_grad_enabled()):
            return call(*args, **kwargs)
        if torch.is_autocast_enabled(self._device):
            if switch.is_ours(self._device):
                return call(*args, **kwargs)
            switch.turn_off("the script uses autocast itself")
            return call(*args, **kwargs)
        if self._scale is not None:
            self._scale.expect(args, kwargs)
        context: Any = torch.autocast(self._device, dtype=self._dtype)
        switch.calls.is_entering = True
        context.__enter__()
        switch.calls.is_entering = False
        switch.calls.depth += 1
        try:
            result = call(*args, **kwargs)
        finally:
            switch.calls.depth -= 1
            context.__exit__(None, None, None)
        if not self._is_said:
            self._is_said = True
            switch.context.changed(
                f"{type(module).__name__} under autocast in {str(self._dtype).removeprefix('torch.')}"
            )
        return map_tensors(result, self._to_fp32)

    def _to_fp32(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype is self._dtype else tensor
