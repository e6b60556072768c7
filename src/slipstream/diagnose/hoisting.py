"""Rewrites a line that takes a batch out of a table and converts it.

In the result, the whole table is converted once before the loop, and the line only indexes rows. The rewrite uses only
the text of the line. If it is not certain that the rewritten line gives the same rows, there is no rewrite: `hoisted`
returns "" and `hoist` returns an empty list.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

_MAKERS = {"tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "DoubleTensor", "asarray", "array"}
_MODULES = {"torch", "np", "numpy"}
# Methods that convert every value separately, so all rows can be converted at once.
_METHODS = {"float", "double", "half", "long", "int", "bool", "astype", "tolist", "to_numpy", "copy", "contiguous"}
_ARRAYS = {"values", "to_numpy"}
_MOVES = {"to", "cuda", "pin_memory"}  # Moves stay in the loop, because the device may lack memory for all rows.


class _NotKnownError(Exception):
    pass


class Hoisted(NamedTuple):
    """The rewrite of one variable.

    `all_x = whole` comes before the loop. In the line, `all_x[rows]` followed by the moves replaces the old value of
    `x`.
    """

    name: str
    whole: str
    rows: str
    moves: str
    tables: frozenset[str]  # Names that the expression for the whole table depends on
    is_range: bool  # Whether the rows are a slice, so that the result is a view

    @property
    def once(self) -> str:
        return f"all_{self.name} = {self.whole}"

    @property
    def then(self) -> str:
        """The new value of the variable, without the moves."""
        return f"all_{self.name}[{self.rows}]"


def hoisted(text: str) -> str:
    """The lines to put before the loop and the rewritten line, joined; "" for a line of another form."""
    parts = hoist(text)
    before = [f"{part.once}  # once, before the loop" for part in parts]
    after = [f"{part.name} = {part.then}{part.moves}" for part in parts]
    return "\n".join([*before, "; ".join(after)]) if parts else ""


def hoist(text: str) -> list[Hoisted]:
    """Return one entry for each variable that the line assigns, or an empty list for a line of another form."""
    try:
        (statement,) = ast.parse(text.strip()).body
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return []
        return [_hoist(name, value) for name, value in _pairs(statement.targets[0], statement.value)]
    except (SyntaxError, ValueError, _NotKnownError):
        return []


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """The (target, value) pairs of `x = ...` or `x, y = ..., ...`."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return [pair for one, other in zip(target.elts, value.elts, strict=True) for pair in _pairs(one, other)]
    raise _NotKnownError


def _hoist(name: str, value: ast.expr) -> Hoisted:
    moves = ""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _MOVES:
        arguments = [ast.unparse(part) for part in (*value.args, *value.keywords)]
        moves = f".{value.func.attr}({', '.join(arguments)}){moves}"
        value = value.func.value
    reader = _Reader()
    whole = reader.strip(value)
    if reader.rows is None or not reader.is_array:
        raise _NotKnownError
    tables = frozenset(one.id for one in ast.walk(whole) if isinstance(one, ast.Name)) - _MODULES
    is_range = isinstance(reader.rows, ast.Slice)
    return Hoisted(name, ast.unparse(whole), _text_of(reader.rows), moves, tables, is_range)


def _text_of(rows: ast.expr) -> str:
    holder = ast.Subscript(ast.Name("_", ast.Load()), rows, ast.Load())
    return ast.unparse(ast.fix_missing_locations(holder))[2:-1]


class _Reader:
    """Goes from the outermost conversion down to the table's name, and removes the selection of rows."""

    def __init__(self) -> None:
        self.rows: ast.expr | None = None
        # Whether one of the operations makes an array or a tensor of the table. A data frame is not indexed like an
        # array.
        self.is_array = False

    def strip(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name):
            return node
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Attribute):
            self.is_array = self.is_array or node.attr in _ARRAYS
            return ast.Attribute(self.strip(node.value), node.attr, ast.Load())
        raise _NotKnownError

    def _call(self, node: ast.Call) -> ast.expr:
        function = node.func
        if not isinstance(function, ast.Attribute) or not all(_is_setting(one.value) for one in node.keywords):
            raise _NotKnownError
        if isinstance(function.value, ast.Name) and function.value.id in _MODULES:
            if function.attr not in _MAKERS or not node.args or not all(map(_is_setting, node.args[1:])):
                raise _NotKnownError
            self.is_array = True
            return ast.Call(function, [self.strip(node.args[0]), *node.args[1:]], node.keywords)
        if function.attr not in _METHODS or not all(map(_is_setting, node.args)):
            raise _NotKnownError
        self.is_array = self.is_array or function.attr in _ARRAYS
        return ast.Call(ast.Attribute(self.strip(function.value), function.attr, ast.Load()), node.args, node.keywords)

    def _subscript(self, node: ast.Subscript) -> ast.expr:
        table, chosen = node.value, node.slice
        if isinstance(table, ast.Attribute) and table.attr == "iloc":
            columns = chosen.elts[1:] if isinstance(chosen, ast.Tuple) else []
            self._take(chosen.elts[0] if isinstance(chosen, ast.Tuple) else chosen)
            inner = self.strip(table.value)
            if not columns:
                return inner
            every = ast.Tuple([ast.Slice(), *columns], ast.Load())
            return ast.Subscript(ast.Attribute(inner, "iloc", ast.Load()), every, ast.Load())
        if _is_array(table):
            if isinstance(chosen, ast.Tuple):
                raise _NotKnownError
            self._take(chosen)
            return self.strip(table)
        if not _is_columns(chosen):
            raise _NotKnownError
        return ast.Subscript(self.strip(table), chosen, ast.Load())

    def _take(self, rows: ast.expr) -> None:
        if self.rows is not None or isinstance(rows, ast.Constant):  # Rows are selected twice, or the row is constant.
            raise _NotKnownError
        self.rows = rows


def _is_array(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Attribute) and node.attr in _ARRAYS


def _is_columns(node: ast.expr) -> bool:
    """Whether the index selects columns: "age", ["age", "height"], features. A slice or a sum selects rows."""
    if isinstance(node, ast.List):
        return all(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in node.elts)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_setting(node: ast.expr) -> bool:
    """Whether the expression is a setting that does not depend on the rows: torch.float32, "float32", True, float."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id in _MODULES
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in ("float", "int", "bool"))
