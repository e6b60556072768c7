"""Runs one model with the channels innermost. Its convolution weights and its images are converted, and its results are
converted back. If the model does not work with this layout, the old layout is restored permanently and the call is
repeated."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from slipstream.seams.nested import map_tensors
from slipstream.techniques._recompute.module_snapshot import ModuleSnapshot

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext


class Layout:
    """Wraps a model. The first call with images of each size may fail, because the model needs contiguous activations
    (`x.view(...)` after a convolution). The old layout is then restored and the call is repeated. The same happens if a
    later call fails, for example in another branch of the model."""

    def __init__(
        self,
        context: ApplyContext,
        module: torch.nn.Module,
        weights: list[torch.nn.Parameter],
        optimizers: Iterable[Any],
    ) -> None:
        self._context = context
        self._optimizers = optimizers
        self._module = weakref.ref(module)
        self._weights = weights
        self._tried: set[Any] = set()
        self._turn(is_on=True)
        context.patches.on_close(lambda: self._turn(is_on=False))

    def call(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._is_on:
            return call(*args, **kwargs)
        shapes: list[Any] = []

        def turn(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dim() != 4 or not tensor.is_floating_point():
                return tensor
            shapes.append(tensor.shape[1:])
            turned = tensor.contiguous(memory_format=torch.channels_last)
            if turned is not tensor and turned.requires_grad:  # A gradient penalty views the gradient of images.
                turned.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
            return turned

        given, named = map_tensors(args, turn), map_tensors(kwargs, turn)
        module: Any = self._module()
        signature = (module.training, *shapes)
        is_new = signature not in self._tried
        with ModuleSnapshot(module) if is_new else contextlib.nullcontext() as snapshot:
            try:
                result = call(*given, **named)
            except RuntimeError as fault:
                if "view" not in str(fault):
                    raise
                if snapshot is not None:  # A later call has no snapshot: batch norm may count its batch twice.
                    snapshot.rewind()
                self._turn(is_on=False)
                self._context.decline(f"the model needs contiguous activations: {str(fault).splitlines()[0]}")
                return call(*args, **kwargs)
        if is_new:
            self._tried.add(signature)
            self._context.changed(f"{len(self._weights)} convolution weights and the images given to them")
        return map_tensors(result, lambda tensor: in_default_layout(tensor) if tensor.dim() == 4 else tensor)

    def _turn(self, is_on: bool) -> None:
        self._is_on = is_on
        wanted = torch.channels_last if is_on else torch.contiguous_format
        for weight in self._weights:
            weight.data = weight.data.contiguous(memory_format=wanted)
            if weight.grad is not None:
                weight.grad.data = weight.grad.data.contiguous(memory_format=wanted)
        for optimizer in self._optimizers:  # Fused optimizers read weights and moments with one index.
            for weight in self._weights:
                _turn_state(optimizer.state.get(weight, {}), weight.shape, wanted)


def _turn_state(state: dict[str, Any], shape: torch.Size, wanted: torch.memory_format) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == shape:
            state[name] = value.contiguous(memory_format=wanted)


def in_default_layout(tensor: torch.Tensor) -> torch.Tensor:
    """Like `contiguous()`, but always with the strides of a new tensor. An image with one channel is contiguous in both
    layouts, and a convolution takes the layout of its result from the strides of its input."""
    tensor = tensor.contiguous()
    usual = torch.empty(tensor.shape, device="meta").stride()
    return tensor if tensor.stride() == usual else tensor.flatten().view(tensor.shape)


def convolution_weights(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Returns the weights of 2D convolutions. Other tensors of four dimensions are left out, because the script may
    view them."""
    kinds = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
    found = [layer.weight for layer in module.modules() if isinstance(layer, kinds)]
    return [weight for weight in found if isinstance(weight, torch.nn.Parameter) and weight.dim() == 4]


def is_turned(weight: torch.Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last)


class DropoutOfTheBase:
    """Dropout with the mask that a contiguous tensor gets. A proof needs it, because a mask is drawn in the order of
    memory. In a tensor with another layout, other elements would be dropped."""

    def __init__(self, original: Callable[..., torch.Tensor]) -> None:
        self._original = original
        functools.update_wrapper(self, original)

    def __call__(
        self, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or input.is_contiguous():
            return self._original(input, p, training, inplace)
        scaled_mask = self._original(torch.ones(input.shape, dtype=input.dtype, device=input.device), p, True)
        return input.mul_(scaled_mask) if inplace else input * scaled_mask
