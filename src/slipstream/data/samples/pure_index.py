"""Recognises a `__getitem__` that only indexes attributes and converts the results element by element. If the
attributes are arrays, this method also works for many indices at once. Only the source of the method is examined.
Neither torch nor the dataset is needed."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import lru_cache
from pathlib import Path
from typing import Any

_CONVERSIONS = {"float", "double", "half", "long", "int", "bool", "clone", "copy", "astype", "to", "type"}
_MAKERS = {"tensor", "as_tensor", "from_numpy", "asarray", "array", "FloatTensor", "LongTensor"}
_MODULES = {"torch", "np", "numpy"}


@lru_cache(maxsize=256)
def only_indexes(method: Any) -> bool:
    """Whether a method only indexes, as `_does_only_index` defines it. Returns False if its source cannot be read."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    return isinstance(function, ast.FunctionDef) and _does_only_index(function)


def only_indexes_at(file: str, line: int) -> bool:
    """Whether the function that is defined on this line only indexes, as `_does_only_index` defines it."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    here = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.lineno == line]
    return len(here) == 1 and _does_only_index(here[0])


def _does_only_index(function: ast.FunctionDef) -> bool:
    """Whether the function only indexes attributes of self, converts them element by element and puts them into tuples,
    lists and dicts. Anything else, such as a branch, a reshape or another call, gives False."""
    if function.decorator_list or len(function.args.args) != 2:
        return False
    owner, index = (argument.arg for argument in function.args.args)
    reader = _Reader(owner, index)
    body = [part for part in function.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    return bool(body) and isinstance(body[-1], ast.Return) and all(reader.allows(part) for part in body)


class _Reader:
    def __init__(self, owner: str, index: str) -> None:
        self._owner = owner
        self._index = index
        self._columns: set[str] = set()  # names of variables that hold an indexed attribute

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
        """Whether the call converts each element separately, such as torch.tensor(column), column.float() or
        column.astype(np.float32)."""
        function = call.func
        if not isinstance(function, ast.Attribute):
            return False
        if isinstance(function.value, ast.Name) and function.value.id in _MODULES:
            return function.attr in _MAKERS and len(call.args) == 1 and self._is_column(call.args[0])
        return function.attr in _CONVERSIONS and self._is_column(function.value)
