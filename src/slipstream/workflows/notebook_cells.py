"""Selects the statements of a notebook that a function needs.

The selection contains the statements that define the names that the function uses, and the statements that later change
the values of these names. What these statements need is selected too. Only the source of the cells is read. Nothing is
executed. A name that neither a cell nor Python defines is an error, unless a selected statement imports `*`.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

_NOTEBOOK_NAMES: Final = {"get_ipython", "display", "In", "Out", "exit", "quit"}
_TRANSPARENT_MAGICS: Final = {"time", "capture"}  # cell magics that run the body of the cell unchanged

_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class CellStatement(msgspec.Struct, frozen=True):
    """A top-level statement of a cell, with the names that it uses."""

    text: str
    binds: frozenset[str]  # names that it assigns
    replaces: frozenset[str]  # those names of `binds` whose earlier values no longer matter
    touches: frozenset[str]  # names whose values it modifies, as model.eval() and settings["lr"] = 1 do
    reads: frozenset[str]  # names that it reads when it runs
    defers: frozenset[str]  # names that are read only when the function or class that it defines is called
    is_star: bool = False  # whether it is `from module import *`


def needed_source(cells: Sequence[str], function: str) -> str:
    """Returns the statements that must run before `function()` can be called, in the order of the notebook.

    Raises ValueError if a needed name is not defined.
    """
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
            f"{function}() needs {', '.join(sorted(missing))}, and no ordinary cell that was run in this notebook"
            f" defines {'it' if len(missing) == 1 else 'them'}. Put the definition into an ordinary cell (without"
            " %%magic or %run) and run the cell, or move the training into a module."
        )
    return "\n".join(dict.fromkeys(statement.text for statement in chosen)) + "\n"


def _backwards(
    statements: Sequence[CellStatement], wanted: frozenset[str], function: str
) -> tuple[list[CellStatement], frozenset[str]]:
    """Goes from the last statement to the first and chooses those that give the wanted names their values.

    Names that a chosen statement reads are wanted too. Returns the chosen statements and the names that are missing.
    """
    chosen: list[CellStatement] = []
    needed = wanted
    for statement in reversed(statements):
        if statement.is_star:
            chosen.append(statement)
            continue
        if not (statement.binds | statement.touches) & needed:
            continue
        if function in statement.reads:
            continue  # the statement calls the training function, and the script calls it at its end anyway
        chosen.append(statement)
        needed = (needed - statement.replaces) | statement.reads
    chosen.reverse()
    bound = frozenset[str]().union(*(statement.binds for statement in chosen))
    return chosen, needed - bound


def _statements(cell: str) -> Iterator[CellStatement]:
    try:
        tree = ast.parse(cell)
    except SyntaxError:  # the cell failed, or uses await at top level
        return
    lines = cell.splitlines()
    for node in tree.body:
        if (body := _magic_body(node)) is not None:
            yield from _statements(body)
            continue
        yield _statement(node, _text(node, tree.body, lines))


def _magic_body(node: ast.stmt) -> str | None:
    """Returns the body of get_ipython().run_cell_magic('time', '', 'body'), or None for any other statement."""
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
    """Returns the statement as it was written, with comments. A statement that shares a line with another one is
    formatted again."""
    first, last = _first_line(node), node.end_lineno or node.lineno
    if any(other is not node and first <= (other.end_lineno or 0) and _first_line(other) <= last for other in siblings):
        return ast.unparse(node)
    return "\n".join(lines[first - 1 : last])


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _statement(node: ast.stmt, text: str) -> CellStatement:
    table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    top = table.get_symbols()
    inside = {name for child in table.get_children() for name in _globals_of(child)}
    immediate = {symbol.get_name() for symbol in top if symbol.is_referenced()}
    if isinstance(node, ast.ClassDef):  # the body of a class runs at once, but its methods do not
        immediate |= {s.get_name() for body in table.get_children() for s in body.get_symbols() if s.is_global()}
    elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        immediate |= inside  # the scopes inside other statements are mostly comprehensions, which run at once
    binds = frozenset(s.get_name() for s in top if s.is_assigned() or s.is_imported() or s.is_namespace())
    binds = frozenset(name for name in binds if not name.startswith("."))
    simple = isinstance(node, (*_DEFINITIONS, ast.Assign, ast.AnnAssign)) and not binds & immediate
    return CellStatement(
        text,
        binds,
        binds if simple else frozenset(),  # an import replaces nothing, because earlier changes of the module stay
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
    """Yields the names whose values a statement modifies, by calling a method or by setting an attribute or an item."""
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
