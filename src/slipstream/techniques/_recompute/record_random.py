"""Records the random numbers of one module call for the whole batch, operator by operator, and replays them in slices.
Each piece of the batch then gets the dropout that it got in the whole batch. Kernels that draw random numbers
internally are refused. The recording works below autograd, so autograd computes gradients as usual."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_DROPOUT = torch.ops.aten.native_dropout.default
_BERNOULLI = ("aten::bernoulli", "aten::bernoulli_")  # These draw zeros and ones, which are stored as bytes.
# Of the operators that draw zeros and ones, only these write into an existing tensor.
_BERNOULLI_IN_PLACE = (torch.ops.aten.bernoulli_.float, torch.ops.aten.bernoulli_.Tensor)


class RefusedError(Exception):
    """A module or a loop cannot be computed in pieces. The message is the reason, as a clause."""


class RandomRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records random numbers in `draws`. Raises RefusedError before an operator writes into a tensor of `guarded`.
    `is_lenient`: operators that draw internally are not refused, and `draws` is then incomplete."""

    def __init__(self, guarded: Iterable[torch.Tensor] = (), is_lenient: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws: list[torch.Tensor] = []
        self._is_lenient = is_lenient
        self._guarded = {_storage(tensor) for tensor in guarded if tensor.numel()} - {0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._guarded and func._schema.is_mutable:
            self._look_at_writes(func, args, kwargs)
        result = func(*args, **kwargs)
        if _is_draw(func, args, kwargs):
            self._keep(func, result)
        return result

    def _keep(self, func: Any, result: Any) -> None:
        try:
            self.draws.append(_drawn(func, result))
        except RefusedError:
            if not self._is_lenient:
                raise

    def _look_at_writes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._look_at(argument, value)
        for argument in func._schema.arguments:
            self._look_at(argument, kwargs.get(argument.name))

    def _look_at(self, argument: Any, value: Any) -> None:
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.numel() and _storage(tensor) in self._guarded:
                raise RefusedError("it changes its inputs, weights or buffers while it computes")


class RandomReplay(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replays the part that belongs to samples `start` to `stop` of `length`."""

    def __init__(self, draws: list[torch.Tensor], start: int, stop: int, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left: Iterator[torch.Tensor] = iter(draws)
        self._start, self._stop, self._length = start, stop, length

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_draw(func, args, kwargs):
            return func(*args, **kwargs)
        drawn = next(self._left, None)
        if drawn is None:
            raise RefusedError("a piece of the batch draws more random numbers than the whole")
        if func is _DROPOUT:
            mask = self._part(drawn, args[0].shape)
            return args[0] * mask * (1.0 / (1.0 - args[1]) if args[1] < 1.0 else 0.0), mask
        # Nothing is drawn here, because on a CPU drawing takes longer than most operations of a model.
        if func in _BERNOULLI_IN_PLACE:
            return args[0].copy_(self._part(drawn, args[0].shape))
        result = func(*args, **kwargs)
        return result.copy_(self._part(drawn, result.shape))

    def is_used_up(self) -> bool:
        return next(self._left, None) is None

    def _part(self, drawn: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Returns the slice of `drawn` along the batch dimension. The batch dimension may be folded with attention
        heads."""
        if drawn.shape == shape:
            return drawn
        differing = [d for d in range(min(drawn.dim(), len(shape))) if drawn.shape[d] != shape[d]]
        if drawn.dim() == len(shape) and len(differing) == 1:
            (along,) = differing
            fold, rest = divmod(drawn.shape[along], self._length)
            if not rest and shape[along] == fold * (self._stop - self._start):
                return drawn.narrow(along, fold * self._start, shape[along])
        raise RefusedError(f"random numbers of shape {list(drawn.shape)} cannot be sliced to {list(shape)}")


def _storage(tensor: torch.Tensor) -> int:
    """Returns the address of the storage. Returns 0 for sparse tensors, which have none, so writes to them are not
    noticed."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else 0


def _is_draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for index, argument in enumerate(func._schema.arguments):
        # Attention and recurrent kernels draw nothing if their dropout is zero.
        if argument.name in ("dropout_p", "dropout"):
            chance = kwargs.get(argument.name, args[index] if index < len(args) else argument.default_value)
            return bool(chance)
    return True


def _drawn(func: Any, result: Any) -> torch.Tensor:
    if func is _DROPOUT:
        return result[1]  # type: ignore[no-any-return]
    if not isinstance(result, torch.Tensor):
        raise RefusedError(f"{func._schema.name} draws random numbers internally")
    return result.bool() if func._schema.name in _BERNOULLI else result.clone()
