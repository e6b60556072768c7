"""Finds the call and the statement on a line that the session recorded."""

from __future__ import annotations

import itertools

import libcst as cst

from slipstream.rewrite.errors import ByHandError, MissingError
from slipstream.rewrite.names import SUPER, ScopeNames
from slipstream.rewrite.source import SourceText

Function = cst.FunctionDef | cst.Lambda


def calls_at(source: SourceText, names: ScopeNames, line: int, callee: str) -> list[cst.Call]:
    """Returns the calls of this name that a frame on this line may have made. Such a call begins on the line, or the
    name of its method is on the line. If there is no such call, returns the calls that span the line.
    """
    named = [call for call in source.all(cst.Call) if names.is_call_of(call, callee)]
    exact = [call for call in named if line in (source.lines_of(call)[0], _name_line(source, call))]
    return exact or [call for call in named if source.lines_of(call)[0] <= line <= source.lines_of(call)[1]]


def one_call_at(source: SourceText, names: ScopeNames, line: int, callee: str) -> cst.Call:
    calls = calls_at(source, names, line, callee) or _calls_of_super(source, names, line, callee)
    if not calls:
        raise MissingError(f"there is no call of {callee} on line {line}")
    if len(calls) > 1:
        raise ByHandError(f"{len(calls)} calls of {callee} are on line {line}, and the session does not say which")
    return calls[0]


def _calls_of_super(source: SourceText, names: ScopeNames, line: int, callee: str) -> list[cst.Call]:
    """Returns calls of super().__init__ in a user's own class, which pass arguments on to torch's class."""
    found = calls_at(source, names, line, SUPER)
    return [call for call in found if any(isinstance(node, cst.ClassDef) for node in source.parents(call))]


def call_by_name(source: SourceText, line: int, name: str) -> cst.Call:
    """Returns the one call of a variable on this line, such as `model(x)` or `self.net(x)`."""
    found = [
        call
        for call in source.all(cst.Call)
        if source.code(call.func) == name and source.lines_of(call)[0] <= line <= source.lines_of(call)[1]
    ]
    if not found:
        raise MissingError(f"{name}(...) is not called on line {line}")
    if len(found) > 1:
        raise ByHandError(f"{name}(...) is called {len(found)} times on line {line}")
    return found[0]


def _name_line(source: SourceText, call: cst.Call) -> int:
    """Returns the line of the method's name. Since Python 3.11 a frame reports this line for the call of a method."""
    name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return source.lines_of(name)[0]


def statement_of(source: SourceText, node: cst.CSTNode) -> cst.CSTNode:
    """Returns the nearest statement that contains the node and stands in a block or at the top level. Other statements
    can be put before this statement."""
    chain = [node, *source.parents(node)]
    for inner, outer in itertools.pairwise(chain):
        if isinstance(outer, cst.IndentedBlock | cst.Module) and isinstance(inner, cst.BaseStatement):
            return inner
    raise AssertionError("a node is outside of every statement")


def statement_at(source: SourceText, line: int) -> cst.CSTNode:
    """Returns the innermost statement that begins on this line or spans it."""
    found = [
        node
        for node in source.all(cst.BaseStatement)  # type: ignore[type-abstract]
        if source.lines_of(node)[0] <= line <= source.lines_of(node)[1]
    ]
    if not found:
        raise MissingError(f"there is no statement on line {line}")
    return statement_of(source, found[-1])


def function_around(source: SourceText, node: cst.CSTNode) -> cst.CSTNode | None:
    return next((one for one in source.parents(node) if isinstance(one, Function)), None)


def block_around(source: SourceText, statement: cst.CSTNode) -> list[cst.BaseStatement]:
    block = next(source.parents(statement))
    assert isinstance(block, cst.IndentedBlock | cst.Module), block
    return [one for one in block.body if isinstance(one, cst.BaseStatement)]


def calls_method(source: SourceText, node: cst.CSTNode, *methods: str) -> bool:
    """Whether anything in the node calls a method with one of these names."""
    return any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value in methods for call in source.all(cst.Call, node)
    )


def line_above(source: SourceText, statement: cst.CSTNode) -> int:
    """Returns the position in bytes for a new statement before this one. The position is above the decorators and the
    comments of this statement.
    """
    first = statement.decorators[0] if _is_decorated(statement) else statement  # type: ignore[attr-defined]
    line, indent = source.lines_of(first)[0], source.indent_at(source.span(first)[0])
    while line > 1 and source.line(line - 1).startswith(indent + "#") and not source.line(line - 1).startswith("#!"):
        line -= 1
    if line <= 2 and any("coding" in source.line(number) for number in (1, 2)):
        line = source.lines_of(first)[0]  # a line that declares the encoding stays at the top
    return source.line_start(line)


def _is_decorated(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.FunctionDef | cst.ClassDef) and bool(statement.decorators)
