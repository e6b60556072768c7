"""The part of a notebook that a function needs, from the cells that were run: definitions, imports, assignments and
what was done to them since, each with all that it reads. Runs nothing, and refuses what it cannot find."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

_NOTEBOOK_NAMES: Final = {"get_ipython", "display", "In", "Out", "exit", "quit"}
_TRANSPARENT_MAGICS: Final = {"time", "capture"}  # of a cell: its body runs as it stands
_IMPORTS: Final = (ast.Import, ast.ImportFrom)
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Statement(msgspec.Struct, frozen=True):
    """One of a cell's own statements, by the names it deals with."""

    text: str
    binds: frozenset[str]  # gives them a value
    replaces: frozenset[str]  # of those, whatever they were before
    touches: frozenset[str]  # changes what they hold: model.eval(), settings["lr"] = 1
    reads: frozenset[str]  # when it runs
    defers: frozenset[str]  # when what it defines is called
    is_star: bool = False  # from module import *


def needed_source(cells: Sequence[str], function: str) -> str:
    """What must run before `function()` can be called, in the order it ran in the notebook."""
    statements = [statement for cell in cells for statement in _statements(cell)]
    known = frozenset[str]().union(*(statement.binds for statement in statements))
    wanted = frozenset({function})
    while True:
        chosen, missing = _backwards(statements, wanted, function)
        deferred = frozenset[str]().union(*(statement.defers for statement in chosen))
        if deferred & known <= wanted:
            break
        wanted |= deferred & known
    missing |= deferred - known
    missing = frozenset(name for name in missing if not hasattr(builtins, name) and name not in _NOTEBOOK_NAMES)
    if missing and not any(statement.is_star for statement in chosen):
        raise ValueError(
            f"{function}() needs {', '.join(sorted(missing))}, and no plain cell that was run in this notebook defines"
            f" {'it' if len(missing) == 1 else 'them'}. Put the definition into an ordinary cell (no %%magic, no %run)"
            " and run it, or move the training into a module."
        )
    return "\n".join(dict.fromkeys(statement.text for statement in chosen)) + "\n"


def _backwards(
    statements: Sequence[Statement], wanted: frozenset[str], function: str
) -> tuple[list[Statement], frozenset[str]]:
    """From the last statement to the first: what gives the wanted names their values, and what that reads in turn."""
    chosen: list[Statement] = []
    needed = wanted
    for statement in reversed(statements):
        if statement.is_star:
            chosen.append(statement)
            continue
        if not (statement.binds | statement.touches) & needed:
            continue
        if function in statement.reads:
            continue  # it trains: riders do that themselves
        chosen.append(statement)
        needed = (needed - statement.replaces) | statement.reads
    chosen.reverse()
    bound = frozenset[str]().union(*(statement.binds for statement in chosen))
    return chosen, needed - bound


def _statements(cell: str) -> Iterator[Statement]:
    try:
        tree = ast.parse(cell)
    except SyntaxError:  # a cell that failed, or one with await at its top
        return
    lines = cell.splitlines()
    for node in tree.body:
        if (body := _magic_body(node)) is not None:
            yield from _statements(body)
            continue
        yield _statement(node, _text(node, tree.body, lines))


def _magic_body(node: ast.stmt) -> str | None:
    """Of get_ipython().run_cell_magic('time', '', 'body')."""
    match node:
        case ast.Expr(
            ast.Call(
                func=ast.Attribute(attr="run_cell_magic"),
                args=[ast.Constant(value=name), _, ast.Constant(value=str(body))],
            )
        ) if name in _TRANSPARENT_MAGICS:
            return body
    return None


def _text(node: ast.stmt, siblings: Sequence[ast.stmt], lines: Sequence[str]) -> str:
    """As it was written, comments included, unless it shares a line with another."""
    first, last = _first_line(node), node.end_lineno or node.lineno
    if any(other is not node and first <= (other.end_lineno or 0) and _first_line(other) <= last for other in siblings):
        return ast.unparse(node)
    return "\n".join(lines[first - 1 : last])


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _statement(node: ast.stmt, text: str) -> Statement:
    table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    top = table.get_symbols()
    inside = {name for child in table.get_children() for name in _globals_of(child)}
    immediate = {symbol.get_name() for symbol in top if symbol.is_referenced()}
    if isinstance(node, ast.ClassDef):  # its body runs at once, its methods do not
        immediate |= {s.get_name() for body in table.get_children() for s in body.get_symbols() if s.is_global()}
    elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        immediate |= inside  # comprehensions
    binds = frozenset(s.get_name() for s in top if s.is_assigned() or s.is_imported() or s.is_namespace())
    binds = frozenset(name for name in binds if not name.startswith("."))
    simple = isinstance(node, (*_DEFINITIONS, ast.Assign, ast.AnnAssign)) and not binds & immediate
    return Statement(
        text,
        binds,
        binds if simple else frozenset(),  # importing twice is harmless, and what was done in between is kept
        frozenset(_touched(node)),
        frozenset(immediate),
        frozenset(inside),
        isinstance(node, ast.ImportFrom) and node.names[0].name == "*",
    )


def _globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
    for child in table.get_children():
        yield from _globals_of(child)


def _touched(node: ast.stmt) -> Iterator[str]:
    """Names whose values a plain statement changes: by a method that it calls, by an attribute or item that it sets."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        targets = [node.value.func]
    elif isinstance(node, (ast.Assign, ast.Delete)):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    for target in targets:
        base = target
        while isinstance(base, (ast.Attribute, ast.Subscript)):
            base = base.value
        if isinstance(base, ast.Name) and base is not target:
            yield base.id
