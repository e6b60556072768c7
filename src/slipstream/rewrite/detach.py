"""Detaches values that a script keeps from step to step, as in `losses.append(loss)` or `total += loss`. Such values
keep their graph alive.

An edit is made only if the text shows that backward is never called on the kept values.
"""

from __future__ import annotations

import libcst as cst

from slipstream.records import Edit
from slipstream.rewrite.errors import ByHandError, MissingError
from slipstream.rewrite.locate import statement_at
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.scopes import variable_of
from slipstream.rewrite.source import SourceText, Splice

_PLAIN = ("print", "sum", "len", "float", "int", "str", "list", "min", "max", "range", "enumerate", "zip", "reversed")
_LIBRARIES = ("torch.", "np.", "numpy.", "statistics.", "plt.", "writer.", "logging.", "logger.", "json.")


def keep_without_graph(source: SourceText, names: ScopeNames, line: int, edit: Edit) -> list[Splice]:
    """Detaches the value that this line keeps. `edit.call` is the name of the container or variable."""
    statement = statement_at(source, line)
    kept = _kept(source, statement, edit.call)
    if kept is None:
        raise MissingError(f"line {line} does not put one value into {edit.call}")
    if source.code(kept).endswith((".detach()", ".item()")):
        return []
    if not isinstance(kept, cst.Name):
        raise ByHandError(f"line {line} keeps {source.code(kept)}, which may be more than one tensor")
    _refuse_backward(source, names, edit.call, statement, set())
    end = source.span(kept)[1]
    return [Splice(end, end, ".detach()")]


def _kept(source: SourceText, statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    for call in source.all(cst.Call, statement):
        if source.code(call.func) == f"{name}.append" and len(call.args) == 1 and not call.args[0].star:
            return call.args[0].value
    for add in source.all(cst.AugAssign, statement):
        if source.code(add.target) == name and isinstance(add.operator, cst.AddAssign):
            return add.value
    return None


def _refuse_backward(source: SourceText, names: ScopeNames, name: str, filled: cst.CSTNode, seen: set[str]) -> None:
    """Refuses the value if backward may be called on it. Follows the value through assignments of its function. A value
    that leaves the function is refused."""
    if not name.isidentifier():
        raise ByHandError(f"{name} is used by more than one function")
    seen.add(name)
    variable = variable_of(source, names, name, filled)
    for use in variable.read:
        chain = list(source.parents(use))
        if filled not in chain:
            statement = _refuse_givers(source, name, use, chain)
            for target in _targets(statement):
                _follow(source, names, target, filled, seen)


def _refuse_givers(source: SourceText, name: str, use: cst.Name, chain: list[cst.CSTNode]) -> cst.CSTNode:
    """Refuses a statement that may call backward on the value, or pass the value on to code that may do so."""
    line, inner = source.lines_of(use)[0], use
    for outer in chain:
        if isinstance(outer, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            break
        if isinstance(outer, cst.Call) and not _is_plain(source, outer, inner):
            raise ByHandError(f"line {line} uses {name} in {source.code(outer.func)}()")
        if isinstance(outer, cst.Call) and _ends_graph(source, outer):
            return outer
        if isinstance(outer, cst.Yield | cst.BaseComp) and "backward" in source.code(outer):
            raise ByHandError(f"line {line} may call backward on {name}")
        inner = outer  # type: ignore[assignment]
    if isinstance(outer, cst.Return) or any(isinstance(one, cst.Yield) for one in chain):
        raise ByHandError(f"line {line} passes {name} on, and the receiver may call backward on it")
    return outer


def _ends_graph(source: SourceText, call: cst.Call) -> bool:
    """Whether the result of the call has no graph."""
    callee = source.code(call.func)
    return callee in ("float", "int", "len", "str", "print") or callee.endswith((".item", ".tolist", ".detach"))


def _targets(statement: cst.CSTNode) -> list[cst.BaseExpression]:
    """Returns the names that the statement gives to the value or to a part of it."""
    if isinstance(statement, cst.Assign):
        return [target.target for target in statement.targets]
    return [statement.target] if isinstance(statement, cst.AugAssign | cst.AnnAssign | cst.For) else []


def _follow(
    source: SourceText, names: ScopeNames, target: cst.BaseExpression, filled: cst.CSTNode, seen: set[str]
) -> None:
    name = source.code(target)
    if name not in seen:
        _refuse_backward(source, names, name, filled, seen)


def _is_plain(source: SourceText, call: cst.Call, inner: cst.CSTNode) -> bool:
    """Whether the call passes the value to a function that is known not to call backward, or calls a method of the
    value other than backward and register_hook."""
    callee = source.code(call.func)
    if inner is call.func:
        return not callee.endswith(("backward", ".register_hook"))
    return callee in _PLAIN or (callee.startswith(_LIBRARIES) and "autograd" not in callee)
