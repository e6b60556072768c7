"""Keeps an optimizer's state in host memory. The state is copied to the device before the update and back after the
update. Values and layout stay the same. Checkpoints contain the state on the device, as they would without this
technique."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Move = Callable[[torch.Tensor, torch.device], torch.Tensor]


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies on the device's current stream, in order with the kernels that read the tensor."""
    return tensor.to(device, non_blocking=tensor.is_pinned())


def to_host(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies into pinned memory and waits, so that the copy is complete before the device memory is reused."""
    kept = torch.empty_like(tensor, device="cpu", pin_memory=True)
    kept.copy_(tensor)
    return kept


class Offloaded:
    """Offloads the state of one optimizer. Only `bring` and `take` copy tensors."""

    def __init__(self, optimizer: torch.optim.Optimizer, bring: Move = to_device, take: Move = to_host) -> None:
        self._optimizer = optimizer
        self._bring, self._take = bring, take
        # The devices of offloaded tensors, by the parameter's id and the tensor's name.
        self._devices: dict[tuple[int, str], torch.device] = {}
        self.num_bytes = 0  # Bytes of state in host memory
        self._undo: list[Any] = []

    def install(self) -> None:
        optimizer = self._optimizer
        self._undo = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(lambda *_: self.send_out()),
            optimizer.register_state_dict_pre_hook(lambda *_: self.bring_in()),
            optimizer.register_state_dict_post_hook(self._after_state_dict),
            optimizer.register_load_state_dict_post_hook(lambda *_: self._after_load()),
        ]
        self.send_out()

    def remove(self) -> None:
        for handle in self._undo:
            handle.remove()
        self._undo = []
        self.bring_in()

    def bring_in(self) -> None:
        for parameter, state in self._optimizer.state.items():
            for name in list(state) if isinstance(state, dict) else ():
                device = self._devices.pop((id(parameter), name), None)
                if device is not None:
                    state[name] = self._bring(state[name], device)
        self._devices.clear()
        self.num_bytes = 0

    def send_out(self) -> None:
        """Offloads tensors that are on their parameter's device. A step count stays where it is."""
        for parameter, state in self._optimizer.state.items():
            for name, value in list(state.items()) if isinstance(state, dict) else ():
                key = (id(parameter), name)
                if key in self._devices or not isinstance(value, torch.Tensor) or not value.dim():
                    continue
                if value.device == parameter.device:
                    state[name] = self._take(value, value.device)
                    self._devices[key] = value.device
                    self.num_bytes += value.nbytes

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self.bring_in()
            return None

        def closed(*inner: Any, **named: Any) -> Any:
            """Runs the script's closure (forward and backward) while the state is in host memory. Copies the state to
            the device afterwards."""
            self.send_out()
            result = closure(*inner, **named)
            self.bring_in()
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": closed}
        return (args[0], closed, *args[2:]), kwargs

    def _after_state_dict(self, optimizer: Any, state_dict: dict[str, Any]) -> None:
        """Leaves the returned state on the device, because the script may keep it or save it."""
        handed = state_dict["state"]
        for key, state in list(handed.items()):
            handed[key] = dict(state) if isinstance(state, dict) else state
        self.send_out()

    def _after_load(self) -> None:
        self._devices.clear()
        self.num_bytes = 0
        self.send_out()
