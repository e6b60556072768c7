"""A model's call under autocast while it trains, its results in fp32 again. Steps aside for good as soon as the script
turns out to use autocast itself."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from slipstream.techniques.parts.structure import convert

if TYPE_CHECKING:
    from slipstream.techniques.parts.loss_scale import LossScale
    from slipstream.techniques.rig import Rig


class Switch:
    """Whether autocast is ours to use; one for all models of a script."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.is_on = True
        self.is_ours = False  # the context that is being entered now

    def turn_off(self, reason: str) -> None:
        self.is_on = False
        self.rig.decline(reason)

    def watch_for_the_scripts_own(self) -> None:
        def after(token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if self.is_on and not self.is_ours and getattr(args[0], "_enabled", False):
                self.turn_off("the script uses autocast itself")

        self.rig.patches.around(torch.autocast, "__enter__", "technique.autocast", None, after)


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
            switch.turn_off("the script uses autocast itself")
            return call(*args, **kwargs)
        if self._scale is not None:
            self._scale.expect(args, kwargs)
        context: Any = torch.autocast(self._device, dtype=self._dtype)
        switch.is_ours = True
        context.__enter__()
        switch.is_ours = False
        try:
            result = call(*args, **kwargs)
        finally:
            context.__exit__(None, None, None)
        if not self._is_said:
            self._is_said = True
            switch.rig.changed(f"{type(module).__name__} under autocast in {str(self._dtype).removeprefix('torch.')}")
        return convert(result, self._to_fp32)

    def _to_fp32(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype is self._dtype else tensor
