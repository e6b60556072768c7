"""Converts a table once before the loop, instead of converting a batch of the table in every step.

An edit is made only if nothing in the loop, and no function of the file, may change the table.
"""

from __future__ import annotations

import libcst as cst

from slipstream.diagnose.hoisting import Hoisted, hoist
from slipstream.records import Edit
from slipstream.rewrite.errors import ByHandError, MissingError
from slipstream.rewrite.locate import function_around, line_above, statement_at
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.scopes import owns
from slipstream.rewrite.source import SourceText, Splice
from slipstream.rewrite.statements import outermost_loop

# _READING has methods that do not change their table. _READERS has functions that do not change a table argument.
_READING = [
    "sample",
    "copy",
    "head",
    "tail",
    "mean",
    "std",
    "sum",
    "min",
    "max",
    "describe",
    "to_numpy",
    "astype",
    "items",
]
_READERS = [
    "len",
    "print",
    "range",
    "tensor",
    "as_tensor",
    "from_numpy",
    "asarray",
    "array",
    "list",
    "enumerate",
    "zip",
]


def convert_once(source: SourceText, names: ScopeNames, line: int, edit: Edit) -> list[Splice]:
    statement = statement_at(source, line)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        raise MissingError(f"line {line} is not one assignment")
    assign = statement.body[0]
    parts = hoist(source.code(assign))
    if not isinstance(assign, cst.Assign) or not parts:
        if f"= {_target_of(edit.text)}[" in source.code(statement):
            return []
        raise MissingError(f"line {line} does not take a batch from a table")
    loop = outermost_loop(source, statement)
    if loop is None:
        raise ByHandError(f"line {line} is not in a loop of its function")
    for part in parts:
        for table in sorted(part.tables):
            _refuse_changes(source, names, table, statement, loop)
        if not names.is_free(f"all_{part.name}"):
            raise ByHandError(f"the name all_{part.name} is already used")
    indent, above = source.indent_at(source.span(loop)[0]), line_above(source, loop)
    once = "".join(f"{indent}{part.once}{source.newline}" for part in parts)
    then = ", ".join(_cut(source, names, part, loop) for part in parts)
    return [Splice(above, above, once), Splice(*source.span(assign.value), then)]


def _target_of(text: str) -> str:
    """Returns the name "all_x" from the lines that the finding suggests."""
    return text.partition(" ")[0]


def _cut(source: SourceText, names: ScopeNames, part: Hoisted, loop: cst.CSTNode) -> str:
    """Returns the expression for a batch. A slice of rows is copied, because a slice is a view, and changes of the
    batch must not change the table."""
    is_view = part.is_range or _may_be_one(source, names, part.rows)
    copy = (".clone()" if "torch." in part.whole else ".copy()") if is_view else ""
    return f"{part.then}{copy}{part.moves}"


def _may_be_one(source: SourceText, names: ScopeNames, rows: str) -> bool:
    """Whether the index may be a number or a slice, because it is a loop's own variable or a named slice. Numbers and
    slices give a view."""
    for use in names.uses(rows) if rows.isidentifier() else []:
        parent = next(source.parents(use))
        if isinstance(parent, cst.For) and parent.target is use:
            return True
        if isinstance(parent, cst.AssignTarget) and "slice(" in source.code(next(source.parents(parent))):
            return True
    return False


def _refuse_changes(
    source: SourceText, names: ScopeNames, table: str, statement: cst.CSTNode, loop: cst.CSTNode
) -> None:
    scope, is_known = function_around(source, statement), False
    for use in names.uses(table):
        chain = list(source.parents(use))
        if statement in chain:
            continue
        function = function_around(source, use)
        is_before = source.span(use)[0] < source.span(loop)[0]
        is_known = is_known or (is_before and function in (scope, None) and _is_given(chain, use))
        is_shared = function not in (scope, None) and not owns(source, names, function, table)
        if (loop in chain or is_shared) and not _only_reads(source, chain, use):
            raise ByHandError(f"line {source.lines_of(use)[0]} may change {table}")
    if not is_known:
        raise ByHandError(f"{table} is created somewhere else")


def _is_given(chain: list[cst.CSTNode], use: cst.Name) -> bool:
    parent = chain[0]
    if isinstance(parent, cst.Param):
        return parent.name is use
    inner = next((node for node in chain if not isinstance(node, cst.Element | cst.Tuple)), parent)
    return isinstance(inner, cst.AssignTarget | cst.AnnAssign | cst.AsName | cst.ImportAlias)


def _only_reads(source: SourceText, chain: list[cst.CSTNode], use: cst.Name) -> bool:
    """Whether the use only reads the table, as `frame["x"].values`, `len(frame)` and `frame.sample(...)` do. The uses
    `frame["x"] = ...`, `shuffle(frame)` and `f = frame` may change the table.
    """
    inner: cst.CSTNode = use
    for outer in chain:
        is_part = isinstance(outer, cst.Attribute | cst.Subscript) and outer.value is inner
        if is_part and not _is_called(chain, outer):
            inner = outer
        elif isinstance(outer, cst.Attribute) and outer.value is inner:
            return outer.attr.value in _READING and "inplace" not in source.code(chain[chain.index(outer) + 1])
        elif isinstance(outer, cst.Arg):
            call = chain[chain.index(outer) + 1]
            return isinstance(call, cst.Call) and source.code(call.func).rpartition(".")[2] in _READERS
        else:
            computes = isinstance(outer, cst.Comparison | cst.ComparisonTarget | cst.BinaryOperation | cst.Index)
            return computes or (isinstance(outer, cst.Assign) and _is_cut(inner))
    return False


def _is_cut(node: cst.CSTNode) -> bool:
    """Whether the use takes another batch from the table, such as `frame["y"].values[rows]`. Other uses may be a second
    name for the table.
    """
    table = node.value if isinstance(node, cst.Subscript) else None
    return isinstance(table, cst.Attribute) and table.attr.value in ("values", "iloc", "loc")


def _is_called(chain: list[cst.CSTNode], node: cst.CSTNode) -> bool:
    outer = chain[chain.index(node) + 1]
    return isinstance(outer, cst.Call) and outer.func is node
