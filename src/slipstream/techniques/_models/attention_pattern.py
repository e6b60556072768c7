"""Recognises hand-written attention while it is being computed. The product of queries and keys is deferred until its
use is known. If the product is scaled, masked, passed through a softmax and multiplied with the values, all of this
becomes one fused call. If the product is used in another way, it is computed as the script wrote it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from slipstream.seams.nested import map_tensors

_LOW_ENOUGH = -1e4  # With a score up to this value, the softmax gives a weight of exactly zero.
_T: Any = torch.Tensor
_broadcast: Any = torch.broadcast_shapes

_PRODUCTS = {torch.matmul, torch.bmm, _T.matmul, _T.bmm, _T.__matmul__}
_TIMES = {torch.mul, torch.multiply, _T.mul, _T.multiply, _T.__mul__, _T.__rmul__}
_OVER = {torch.div, torch.divide, torch.true_divide, _T.div, _T.divide, _T.true_divide, _T.__truediv__}
_PLUS = {torch.add, _T.add, _T.__add__, _T.__radd__}
_FILL = {torch.masked_fill, _T.masked_fill}
_SOFTMAX = {torch.softmax, _T.softmax, functional.softmax}
_DROPOUT = {torch.dropout, functional.dropout}
_CASTS = {_T.float, _T.to, _T.type_as, _T.contiguous, _T.type, _T.half, _T.bfloat16}
_IN_PLACE = {
    _T.mul_: _T.mul,
    _T.__imul__: _T.mul,
    _T.div_: _T.div,
    _T.__itruediv__: _T.div,
    _T.add_: _T.add,
    _T.__iadd__: _T.add,
    _T.masked_fill_: _T.masked_fill,
}
_FACTS = {
    _T.size,
    _T.dim,
    _T.numel,
    _T.is_floating_point,
    _T.__len__,
    *(getattr(_T, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "layout")),
    *(getattr(_T, name).__get__ for name in ("is_cuda", "is_cpu", "is_sparse", "is_leaf") if hasattr(_T, name)),
}


class AttentionPlan:
    """The computation softmax(scale * query @ keys + bias, where kept), as far as it is known. A plan is never changed,
    only copied."""

    def __init__(self, query: torch.Tensor, keys: torch.Tensor) -> None:
        self.query = query
        self.keys = keys  # In the layout of the product: (..., width, positions)
        self.scale = 1.0
        # Scales that are tensors. Their values are not read, because the host would wait for the device.
        self.factors: tuple[torch.Tensor, ...] = ()
        self.bias: torch.Tensor | None = None
        self.keep: torch.Tensor | None = None  # True where a weight may be nonzero
        self.is_blank_uniform = False  # Whether rows of `keep` without any True have equal weights
        self.is_soft = False
        self.versions = (query._version, keys._version)

    def but(self, **changes: Any) -> AttentionPlan:
        control = object.__new__(AttentionPlan)
        control.__dict__.update(self.__dict__, **changes)
        return control

    def is_intact(self) -> bool:
        return self.versions == (self.query._version, self.keys._version)

    def fuse(self, values: torch.Tensor) -> torch.Tensor:
        query, keys, bias, keep = self.query, self.keys.transpose(-2, -1), self.bias, self.keep
        for factor in self.factors:
            query = query * factor.reshape(()).to(query.dtype)
        if query.dim() == 3:
            query, keys, wide = query.unsqueeze(1), keys.unsqueeze(1), values.unsqueeze(1)
            bias, keep = _with_heads(bias), _with_heads(keep)
        else:
            wide = values
        is_causal = keep is not None and bias is None and _is_causal(keep, query.shape[-2], keys.shape[-2])
        mask = None if is_causal else _mask(bias, keep, query)
        result = functional.scaled_dot_product_attention(
            query, keys, wide, attn_mask=mask, is_causal=is_causal, scale=self.scale
        )
        if self.is_blank_uniform and keep is not None and not is_causal:
            blank = ~keep.any(-1, keepdim=True)
            result = torch.where(blank, wide.mean(-2, keepdim=True).to(result.dtype), result)
        return result.squeeze(1) if self.query.dim() == 3 else result


class Deferred(torch.Tensor):
    """Behaves like the tensor that it stands for. An operation that cannot lead to a fused call computes the tensor."""

    _thunk: Callable[[], torch.Tensor] | None
    _value: torch.Tensor | None
    plan: AttentionPlan
    place: Any

    @staticmethod
    def make(
        like: Any, plan: AttentionPlan, thunk: Callable[[], torch.Tensor], place: Any, dtype: torch.dtype
    ) -> Deferred:
        shape, device, grad = like
        made: Deferred = torch.Tensor._make_wrapper_subclass(
            Deferred, shape, dtype=dtype, device=device, requires_grad=grad and torch.is_grad_enabled()
        )
        made._thunk, made._value, made.plan, made.place = thunk, None, plan, place
        return made

    def compute(self) -> torch.Tensor:
        if self._value is None:
            assert self._thunk is not None
            self._value, self._thunk = self._thunk(), None
        return self._value

    def part(self) -> None:
        """Gives this tensor its own copy of the value before the script changes it in place. Tensors that were derived
        from this tensor keep the old value."""
        if self._value is None:
            self._value = self.compute().clone()

    @property
    def is_computed(self) -> bool:
        """Whether the tensor was computed. A computed tensor may be changed in place, also through a view. The plan
        then no longer describes the tensor."""
        return self._value is not None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FACTS:  # The answer is known without computing the tensor.
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return func(*map_tensors(args, settle), **map_tensors(kwargs or {}, settle))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func} was called with a deferred tensor")


class AttentionCall(TorchFunctionMode):
    """The mode that is active inside one module's call. `decide` gets every attention that could be fused and returns
    its result. `place` returns the present place in the script."""

    def __init__(
        self,
        decide: Callable[[Deferred, torch.Tensor, Callable[[], torch.Tensor]], torch.Tensor],
        refuse: Callable[[str], None],
        place: Callable[[], Any] = lambda: None,
    ) -> None:
        super().__init__()
        self._decide = decide
        self._refuse = refuse
        self._place = place

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if Deferred not in types:
            if func in _PRODUCTS and len(args) == 2 and not kwargs and _could_be_scores(*args):
                return self._begin(func, *args)
            return func(*args, **kwargs)
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        target = args[0] if args else None
        if func in _IN_PLACE and isinstance(target, Deferred):
            outcome = self._follow(_IN_PLACE[func], args, kwargs)
            if outcome is not None:  # An operation in place returns the same object.
                target._thunk, target._value, target.plan = outcome._thunk, None, outcome.plan
                return target
        if isinstance(target, Deferred) and _is_in_place(func):
            target.part()
        outcome = self._follow(func, args, kwargs)
        return outcome if outcome is not None else func(*map_tensors(args, settle), **map_tensors(kwargs, settle))

    def _begin(self, func: Any, query: torch.Tensor, keys: torch.Tensor) -> Deferred:
        shape = (*query.shape[:-1], keys.shape[-1])
        grad = query.requires_grad or keys.requires_grad
        kind = query.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
        thunk = _thunk(func, (query, keys), {})
        return Deferred.make((shape, query.device, grad), AttentionPlan(query, keys), thunk, self._place(), dtype)

    def _follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns the next deferred tensor on the way to a fused call, or None if the operation cannot lead to one."""
        if func in _PRODUCTS:
            return self._end(func, args, kwargs)
        index = next((i for i, value in enumerate(args) if isinstance(value, Deferred)), None)
        if index is None or sum(isinstance(value, Deferred) for value in (*args, *kwargs.values())) != 1:
            return None
        source: Deferred = args[index]
        if source.is_computed:
            return None
        others = [value for i, value in enumerate(args) if i != index]
        plan = None if source.plan.is_soft and func not in (_DROPOUT | _CASTS) else source.plan
        dtype: torch.dtype | None = source.dtype
        if plan is not None and func in _CASTS:
            dtype = _cast_dtype(func, source, others, kwargs)
            plan = plan if dtype is not None else None
        elif plan is not None:
            plan, dtype = self._step(func, plan, index, others, kwargs, source)
        if plan is None or dtype is None:
            return None
        like = (source.shape, source.device, source.requires_grad)
        return Deferred.make(like, plan, _thunk(func, args, kwargs), source.place, dtype)

    def _step(
        self, func: Any, plan: AttentionPlan, index: int, others: list[Any], kwargs: dict[str, Any], source: Deferred
    ) -> tuple[AttentionPlan | None, torch.dtype | None]:
        dtype = source.dtype
        if func in _SOFTMAX:
            given = kwargs.get("dtype")
            dim = kwargs.get("dim", others[0] if others else None)
            is_last = isinstance(dim, int) and dim in (-1, source.dim() - 1) and given in (None, torch.float32)
            if torch.is_autocast_enabled(source.device.type):
                dtype = torch.float32
            return (plan.but(is_soft=True) if is_last else None), given or dtype
        if func in _DROPOUT:
            return self._drop(plan, others, kwargs), dtype
        if kwargs or len(others) not in (1, 2):
            return None, None
        if func in _TIMES or func in _OVER:
            return _scale(plan, others[0], func in _OVER) if len(others) == 1 else None, dtype
        if func in _PLUS and len(others) == 1:
            return _add(plan, others[0], source.shape), dtype
        if func in _FILL and index == 0 and len(others) == 2:
            return _fill(plan, others[0], others[1], source.shape), dtype
        if func is torch.where and index == 1:
            return _fill(plan, ~others[0], others[1], source.shape) if _is_mask(others[0]) else None, dtype
        return None, None

    def _drop(self, plan: AttentionPlan, others: list[Any], kwargs: dict[str, Any]) -> AttentionPlan | None:
        p = kwargs.get("p", others[0] if others else 0.5)
        is_training = kwargs.get("training", others[1] if len(others) > 1 else True)
        if p == 0 or not is_training:
            return plan
        self._refuse("dropout on the attention weights would draw other random numbers in a fused kernel")
        return None

    def _end(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) != 2:
            return None
        weights, values = args
        if not isinstance(weights, Deferred) or isinstance(values, Deferred) or not weights.plan.is_soft:
            return None
        if weights.is_computed:
            return None
        keys = weights.plan.keys
        is_alike = values.dim() == keys.dim() and values.shape[:-2] == keys.shape[:-2]
        if not is_alike or values.shape[-2] != keys.shape[-1] or not weights.plan.is_intact():
            return None
        return self._decide(weights, values, lambda: func(weights.compute(), values))


def _could_be_scores(query: Any, keys: Any) -> bool:
    return (
        isinstance(query, torch.Tensor)
        and isinstance(keys, torch.Tensor)
        and query.dim() == keys.dim()
        and query.dim() in (3, 4)
        and query.shape[:-2] == keys.shape[:-2]
        and query.is_floating_point()
        and query.dtype is keys.dtype
        and not query.is_inference()
        and not keys.is_inference()
    )


def _scale(plan: AttentionPlan, factor: Any, is_divisor: bool) -> AttentionPlan | None:
    if plan.bias is not None or plan.keep is not None:
        return None
    if isinstance(factor, (int, float)) and factor:
        return plan.but(scale=plan.scale / factor if is_divisor else plan.scale * factor)
    if isinstance(factor, torch.Tensor) and factor.numel() == 1 and factor.dim() < 3 and not factor.requires_grad:
        return plan.but(factors=(*plan.factors, factor.reciprocal() if is_divisor else factor))
    return None


def _add(plan: AttentionPlan, mask: Any, shape: torch.Size) -> AttentionPlan | None:
    if (
        not isinstance(mask, torch.Tensor)
        or not mask.is_floating_point()
        or mask.requires_grad
        or plan.keep is not None
    ):
        return None
    if not _fits(mask, shape):
        return None
    return plan.but(bias=mask if plan.bias is None else plan.bias + mask)


def _fill(plan: AttentionPlan, mask: Any, value: Any, shape: torch.Size) -> AttentionPlan | None:
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu":
        value = value.item()
    if not _is_mask(mask) or not isinstance(value, (int, float)) or value > _LOW_ENOUGH or not _fits(mask, shape):
        return None
    is_blank_uniform = not math.isinf(value)
    if plan.keep is not None and plan.is_blank_uniform != is_blank_uniform:
        return None
    keep = ~mask if plan.keep is None else plan.keep & ~mask
    if is_blank_uniform and plan.bias is not None:
        return None
    return plan.but(keep=keep, is_blank_uniform=is_blank_uniform)


def _is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _is_mask(mask: Any) -> bool:
    return isinstance(mask, torch.Tensor) and mask.dtype is torch.bool


def _fits(mask: torch.Tensor, shape: torch.Size) -> bool:
    return mask.dim() <= len(shape) and _broadcast(mask.shape, shape) == shape


def _mask(bias: torch.Tensor | None, keep: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    if bias is not None:
        kind = query.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
        bias = bias.to(dtype)
        return bias if keep is None else bias.masked_fill(~keep, -math.inf)
    return keep


def _with_heads(mask: torch.Tensor | None) -> torch.Tensor | None:
    return mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask


def _is_causal(keep: torch.Tensor, num_queries: int, num_keys: int) -> bool:
    """Whether the mask is causal. Returns False on other devices than the CPU, because the host would have to wait for
    the values."""
    if (
        keep.device.type != "cpu"
        or keep.numel() != num_queries * num_keys
        or keep.shape[-2:] != (num_queries, num_keys)
    ):
        return False
    causal = torch.ones(num_queries, num_keys, dtype=torch.bool, device="cpu").tril_()
    return torch.equal(keep.reshape(num_queries, num_keys), causal)


def _cast_dtype(func: Any, source: Deferred, others: list[Any], kwargs: dict[str, Any]) -> torch.dtype | None:
    """Returns the floating-point type that the call converts to, or None for any other use of these calls."""
    if func is _T.contiguous:
        return source.dtype if not others and not kwargs else None
    if func in (_T.float, _T.half, _T.bfloat16):
        return {_T.float: torch.float32, _T.half: torch.float16, _T.bfloat16: torch.bfloat16}[func]
    given = [*others, *kwargs.values()]
    if len(given) != 1 or set(kwargs) - {"dtype"}:
        return None
    wanted = given[0].dtype if isinstance(given[0], torch.Tensor) and func is _T.type_as else given[0]
    return wanted if isinstance(wanted, torch.dtype) and wanted.is_floating_point else None


def _thunk(func: Any, args: Any, kwargs: Any) -> Callable[[], torch.Tensor]:
    """Returns the computation as the script wrote it. It runs in the gradient mode that is active now."""
    is_grad = torch.is_grad_enabled()
    # A deferred tensor may be changed in place later, so its present state is captured.
    parts = [(value._thunk, value._value) if isinstance(value, Deferred) else None for value in args]
    memory: list[torch.Tensor] = []

    def compute() -> torch.Tensor:
        if not memory:
            given = [
                value if part is None else part[1] if part[1] is not None else part[0]()  # type: ignore[misc]
                for value, part in zip(args, parts, strict=True)
            ]
            with torch.set_grad_enabled(is_grad):
                memory.append(func(*given, **map_tensors(kwargs, settle)))
        return memory[0]

    return compute


def settle(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that leaves the module. A deferred tensor is computed."""
    return tensor.compute() if isinstance(tensor, Deferred) else tensor
