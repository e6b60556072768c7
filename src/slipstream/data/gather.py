"""Whole batches from datasets that are arrays underneath: indexed once for a batch and not once for a sample. Which are
is told by their type, or by a `__getitem__` that does nothing but index; whether the batch is the same is proved by
whoever uses it. Consumes no random numbers."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset, get_worker_info

Gather = Callable[[torch.Tensor], Any]  # indices to the batch that torch's own collate would make of the samples

_CONVERSIONS = {"float", "double", "half", "long", "int", "bool", "clone", "copy", "astype", "to", "type"}
_MAKERS = {"tensor", "as_tensor", "from_numpy", "asarray", "array", "FloatTensor", "LongTensor"}
_MODULES = {"torch", "np", "numpy"}


def gather_of(dataset: Any) -> Gather | None:
    """None: samples must be taken one by one."""
    if type(dataset) is Subset:
        return _of_subset(dataset)
    if type(dataset) is TensorDataset:
        return _of_tensors(dataset) if all(_is_plain(tensor) for tensor in dataset.tensors) else None
    if type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "format"):
        return _of_arrow(dataset)
    if "__getitems__" not in dir(type(dataset)) and only_indexes(getattr(type(dataset), "__getitem__", None)):
        return lambda indices: _collated(dataset[indices.numpy()])
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad


def _of_tensors(dataset: TensorDataset) -> Gather:
    return lambda indices: [_select(tensor, indices) for tensor in dataset.tensors]


def _select(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """In a worker straight into shared memory, as torch's own collate does."""
    if get_worker_info() is None:
        return tensor.index_select(0, indices)
    shape = (len(indices), *tensor.shape[1:])
    whole: Any = tensor
    storage = whole._typed_storage()._new_shared(len(indices) * tensor[0].numel(), device=tensor.device)
    out = whole.new(storage).resize_(*shape)
    return torch.index_select(tensor, 0, indices, out=out)


def _of_subset(dataset: Subset[Any]) -> Gather | None:
    inner = gather_of(dataset.dataset)
    if inner is None:
        return None
    try:
        chosen = torch.as_tensor(dataset.indices, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return lambda indices: inner(chosen.index_select(0, indices))


def _of_arrow(dataset: Any) -> Gather | None:
    """A Hugging Face dataset that gives tensors: it reads columns faster than rows."""
    if (dataset.format or {}).get("type") != "torch":
        return None
    return lambda indices: _collated(dataset[indices.tolist()])


def _collated(found: Any) -> Any:
    """Columns in the containers and types that torch's collate gives."""
    if isinstance(found, torch.Tensor):
        return found
    if isinstance(found, np.ndarray):
        return torch.as_tensor(found)
    if isinstance(found, Mapping):
        return {key: _collated(value) for key, value in found.items()}
    if type(found) in (tuple, list):
        return [_collated(value) for value in found]
    raise TypeError(f"a column of type {type(found).__name__}")


def is_same(ours: Any, theirs: Any) -> bool:
    """Bit for bit, with containers, types and the way that tensors lie in memory."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        is_alike = (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        return is_alike and ours.contiguous().numpy().tobytes() == theirs.contiguous().numpy().tobytes()
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(is_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(is_same(a, b) for a, b in zip(ours, theirs, strict=True))
    return bool(ours == theirs)


# --- a __getitem__ that does nothing but index ----------------------------------------------------------------------


@lru_cache(maxsize=256)
def only_indexes(method: Any) -> bool:
    """Whether what it does to one index it does to many: attributes of self that are indexed, converted element by
    element, and put into tuples, lists and dicts. Anything else, a branch, a reshape, a call, is not looked into."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    if not isinstance(function, ast.FunctionDef) or function.decorator_list or len(function.args.args) != 2:
        return False
    owner, index = (argument.arg for argument in function.args.args)
    reader = _Reader(owner, index)
    body = [part for part in function.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    return bool(body) and isinstance(body[-1], ast.Return) and all(reader.allows(part) for part in body)


class _Reader:
    def __init__(self, owner: str, index: str) -> None:
        self._owner = owner
        self._index = index
        self._columns: set[str] = set()  # names of what was indexed already

    def allows(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Return):
            return statement.value is not None and self._is_sample(statement.value)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or target.id == self._index or not self._is_column(statement.value):
            return False
        self._columns.add(target.id)
        return True

    def _is_sample(self, node: ast.expr) -> bool:
        if isinstance(node, (ast.Tuple, ast.List)):
            return bool(node.elts) and all(self._is_sample(part) for part in node.elts)
        if isinstance(node, ast.Dict):
            is_named = all(isinstance(key, ast.Constant) for key in node.keys)
            return is_named and all(self._is_sample(value) for value in node.values)
        return self._is_column(node)

    def _is_column(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._columns
        if isinstance(node, ast.Subscript):
            return self._is_attribute(node.value) and isinstance(node.slice, ast.Name) and node.slice.id == self._index
        if isinstance(node, ast.BinOp):
            sides = (node.left, node.right)
            is_simple = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div))
            is_plain = any(isinstance(side, ast.Constant) for side in sides)
            return is_simple and is_plain and any(self._is_column(side) for side in sides)
        return isinstance(node, ast.Call) and self._is_conversion(node)

    def _is_attribute(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
            if isinstance(node, ast.Name):
                return node.id == self._owner
        return False

    def _is_conversion(self, call: ast.Call) -> bool:
        """Of each element by itself: torch.tensor(column), column.float(), column.astype(np.float32)."""
        function = call.func
        if not isinstance(function, ast.Attribute):
            return False
        if isinstance(function.value, ast.Name) and function.value.id in _MODULES:
            return function.attr in _MAKERS and len(call.args) == 1 and self._is_column(call.args[0])
        return function.attr in _CONVERSIONS and self._is_column(function.value)
