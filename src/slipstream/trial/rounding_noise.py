"""Adds the rounding errors of a precision to a training that otherwise computes as before. Relative random noise is
added to the weights and to the results of operators in the model's forward and backward passes. In some draws these
values are rounded instead. A trial with this noise shows how far correct arithmetic of that precision moves gradients,
weights and losses. The noise uses its own random numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from slipstream.records import RANDOM_DRAWS, ROUNDOFF, Precision
from slipstream.seams.patching import Patches

_SEED = 20260
_POOL_NUMEL = 1 << 20  # random numbers that are drawn once; each operator starts at another place among them
# Half of the largest relative distance between two neighbouring numbers of a type. Smaller noise would be lost when a
# result is rounded to its type.
_OF_DTYPE = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24, torch.float64: 2**-53}
_SHORT: dict[torch.dtype, Precision] = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_CLEARED_BITS: dict[Precision, int] = {"bf16": 16, "fp16": 13, "tf32": 13}  # of fp32's significand
# These operators only move, select or create values, or change signs, so they round nothing.
_EXACT = re.compile(
    r"aten::(clone|copy_|_?to_copy|cat|stack|index|index_put_?|index_select|gather|take|embedding|where|masked_\w+|\w+_scatter"
    r"|scatter_?|constant_pad_nd|fill_?|zero_|(zeros|ones|full|empty|new|rand|randn)\w*|arange|eye|scalar_tensor|lift\w*"
    r"|detach|neg|abs|sign|relu_?|threshold\w*|hardtanh\w*|clamp\w*|maximum|minimum|max|min|max_pool\w*|repeat|flip|roll"
    r"|tril|triu|sort|topk|\w*bernoulli\w*|uniform_|normal_?|exponential_|multinomial|resize_|set_|_unsafe_view"
    r"|select_backward|slice_backward|unfold_backward|embedding_dense_backward)$"
)


class RoundingNoise:
    """Adds noise to every module that this object is called with."""

    def __init__(self, precision: Precision, draw: int) -> None:
        self._precision = precision
        self._is_rounded = draw >= RANDOM_DRAWS
        self._random = random.Random(_SEED + draw)
        self._pools: dict[torch.device, torch.Tensor] = {}
        self.own_precision: Precision = "fp32"  # the coarsest precision that the script itself uses
        self._exact: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by address: weights, and their exact values
        self._operators: Any = _OperatorNoise(self._moved)

    def install(self, patches: Patches) -> None:
        """Must be called before the fingerprint recorder is installed. The recorder must read the weights after this
        hook has restored them."""
        for name in ("backward", "grad"):
            patches.around(
                torch.autograd, name, f"rounding_noise.{name}", self._begin_pass, self._end_pass, self._abandon_pass
            )
        hook = patches.guard("rounding_noise.update", self._before_step)
        patches.on_close(register_optimizer_step_pre_hook(hook).remove)

    def __call__(self, module: torch.nn.Module) -> None:
        module.register_forward_pre_hook(self._before_forward, prepend=True)
        module.register_forward_hook(self._after_forward, always_call=True)

    # --- operators ------------------------------------------------------------------------------------------------

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        self._move_weights(module)
        self._operators.__enter__()

    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._operators.__exit__(None, None, None)

    def _begin_pass(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._operators.__enter__()

    def _end_pass(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._operators.__exit__(None, None, None)

    def _abandon_pass(self, token: Any) -> None:
        self._operators.__exit__(None, None, None)

    # --- weights --------------------------------------------------------------------------------------------------

    def _move_weights(self, module: torch.nn.Module) -> None:
        """Adds noise to the weights until the next update. Changing `data` does not advance the version counters, so
        the backward pass accepts the weights."""
        for parameter in module.parameters():
            weights = parameter.data
            if weights.data_ptr() in self._exact or not weights.is_floating_point() or not weights.numel():
                continue
            self._exact[weights.data_ptr()] = weights, weights.clone()
            weights.copy_(self._moved(weights))

    def _restore(self) -> None:
        for weights, exact in self._exact.values():
            weights.copy_(exact)
        self._exact.clear()

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._restore()
            return None
        if "closure" in kwargs:
            return args, {**kwargs, "closure": self._restored_after(closure)}
        return (args[0], self._restored_after(closure), *args[2:]), kwargs

    def _restored_after(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a closure that restores the weights at its end. The closure runs the model, and the optimizer then
        updates the weights."""

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            self._restore()
            return result

        return evaluate

    # --- noise ----------------------------------------------------------------------------------------------------

    def _moved(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the values with noise, or the rounded values."""
        with torch.no_grad():
            wide = values if values.dtype == torch.float64 else values.float()
            roundoff = self._roundoff(values.dtype)
            if self._is_rounded and values.dtype not in _SHORT:
                return self._rounded(wide).to(values.dtype)
            noise = self._uniform(wide.numel(), wide.device).view(wide.shape).to(wide.dtype)
            moved = wide + wide * (noise * roundoff)
            return torch.where(torch.isfinite(wide), moved, wide).to(values.dtype)  # keeps the infinite values of masks

    def _roundoff(self, dtype: torch.dtype) -> float:
        """Returns the larger of two roundoffs: of the precision and of the tensor's type. If the precision is fp32,
        returns the roundoff of the type."""
        own, short = _OF_DTYPE.get(dtype, 0.0), _SHORT.get(dtype)
        if short is not None and ROUNDOFF[short] > ROUNDOFF[self.own_precision]:
            self.own_precision = short
        return own if self._precision == "fp32" else max(own, ROUNDOFF[self._precision])

    def _rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Rounds to the significand of the precision. The range stays the range of fp32. fp16 without loss scaling also
        loses small numbers, but that is a fault and not rounding."""
        cleared = _CLEARED_BITS[self._precision]
        bits = values.float().contiguous().view(torch.int32)
        return ((bits + (1 << (cleared - 1))) & -(1 << cleared)).view(torch.float32)

    def _uniform(self, numel: int, device: torch.device) -> torch.Tensor:
        """Returns random numbers between -1 and 1."""
        if device not in self._pools:
            generator = torch.Generator().manual_seed(self._random.randrange(1 << 31))
            self._pools[device] = (2 * torch.rand(_POOL_NUMEL, generator=generator, device="cpu") - 1).to(device)
        pool, start = self._pools[device], self._random.randrange(_POOL_NUMEL)
        if start + numel > _POOL_NUMEL:
            pool = pool.repeat(-(-(start + numel) // _POOL_NUMEL))
        return pool[start : start + numel]


class _OperatorNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds noise to what operators return."""

    def __init__(self, moved: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noise = moved

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        if _EXACT.match(schema.name):
            return result
        if not isinstance(result, (tuple, list)):
            return self._noisy(result, schema.returns[0].alias_info if schema.returns else None)
        if any(returned.alias_info is not None for returned in schema.returns):
            return result
        if schema.name.endswith("_backward"):
            return pytree.tree_map(self._noisy, result)
        # The further values that operators return are statistics. Every precision keeps them in fp32.
        return type(result)([self._noisy(result[0]), *result[1:]]) if result else result

    def _noisy(self, output: Any, alias: Any = None) -> Any:
        if not isinstance(output, torch.Tensor) or not output.is_floating_point() or output.numel() < 2:
            return output  # losses and other single numbers are computed in fp32
        if output.layout is not torch.strided or (alias is not None and not alias.is_write):
            return output  # a view has no values of its own
        if alias is None:
            return self._noise(output)
        return output.copy_(self._noise(output))
