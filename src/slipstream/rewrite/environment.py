"""Sets an environment variable in the script, before the first import of a library that may read the variable.

A value from the user's shell takes precedence. Variables that the process reads when it starts cannot be set in the
source.
"""

from __future__ import annotations

import sys

import libcst as cst
from libcst.helpers import get_full_name_for_node

from slipstream.records import Edit
from slipstream.rewrite.errors import ByHandError
from slipstream.rewrite.locate import line_above
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.source import SourceText, Splice


def put_before_imports(source: SourceText, names: ScopeNames, edit: Edit) -> list[Splice]:
    """Sets the variable `edit.argument` to the value `edit.text`."""
    first = next((one for one in source.module.body if _loads(source, one)), None)
    if first is None:
        raise ByHandError("the script imports nothing that reads the variable: set it on the command line")
    text = f'os.environ.setdefault("{edit.argument}", "{edit.text}")'
    for node in source.all(cst.SimpleString):
        if node.evaluated_value == edit.argument:
            if source.span(node)[0] < source.span(first)[0]:
                return []  # already set, by the user or by an earlier patch
            raise ByHandError(f"line {source.lines_of(node)[0]} sets {edit.argument}")
    before = list(source.module.body[: source.module.body.index(first)])
    has_os = any(_imports_os(one) for one in before)
    if not has_os and names.is_given("os"):
        raise ByHandError("the file uses the name os for something else")
    start = "" if has_os else f"import os{source.newline}"
    if before and _is_import(before[-1]):
        below = source.line_start(source.lines_of(before[-1])[1] + 1)
        gap = source.newline if source.line(source.line_of(below)).strip() else ""
        return [Splice(below, below, f"{start}{source.newline}{text}{source.newline}{gap}")]
    above = line_above(source, first)
    gap = source.newline if has_os and source.line(source.line_of(above) - 1).strip() else ""
    return [Splice(above, above, f"{gap}{start}{source.newline if start else ''}{text}{source.newline * 2}")]


def _loads(source: SourceText, statement: cst.CSTNode) -> bool:
    """Whether the statement, or a statement inside it, imports a module from outside the standard library."""
    modules = [get_full_name_for_node(alias.name) for node in source.all(cst.Import, statement) for alias in node.names]
    for node in source.all(cst.ImportFrom, statement):
        modules.append(get_full_name_for_node(node.module) if node.module is not None and not node.relative else ".")
    return any((name or ".").partition(".")[0] not in sys.stdlib_module_names for name in modules)


def _is_import(statement: cst.CSTNode) -> bool:
    parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    return bool(parts) and isinstance(parts[-1], cst.Import | cst.ImportFrom)


def _imports_os(statement: cst.CSTNode) -> bool:
    parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    names = [alias for part in parts if isinstance(part, cst.Import) for alias in part.names]
    return any(get_full_name_for_node(alias.name) == "os" and alias.asname is None for alias in names)
