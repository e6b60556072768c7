"""One variable in one function, or at the top level of one file: where it is assigned, and where it is read.

Variables that other functions may read or change are refused, because the text of one function does not show all their
uses.
"""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from slipstream.rewrite.errors import ByHandError
from slipstream.rewrite.locate import function_around
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.source import SourceText

_BINDERS = (cst.For, cst.CompFor, cst.NamedExpr, cst.Param, cst.AsName, cst.Del, cst.NameItem, cst.FunctionDef)


class Variable(NamedTuple):
    """A variable and its uses. `given` has the values of plain assignments. None stands for a value that is not known,
    such as the value of a loop's variable.
    """

    name: str
    given: list[tuple[cst.Name, cst.BaseExpression | None]]
    added: list[cst.AugAssign]
    read: list[cst.Name]


def variable_of(source: SourceText, names: ScopeNames, name: str, node: cst.CSTNode) -> Variable:
    """Returns the variable in the scope of the function around `node`."""
    scope = function_around(source, node)
    kinds = (cst.FunctionDef, cst.Lambda, cst.ClassDef)
    if isinstance(next((one for one in source.parents(node) if isinstance(one, kinds)), None), cst.ClassDef):
        raise ByHandError(f"{name} is an attribute of a class, which all code can access")
    found = Variable(name, [], [], [])
    for use in names.uses(name):
        if function_around(source, use) is not scope:
            _refuse_seen(source, names, use, scope)
            continue
        parent = next(source.parents(use))
        if isinstance(parent, cst.AugAssign) and parent.target is use:
            found.added.append(parent)
        elif (value := _value(source, use)) is not None:
            found.given.append((use, value))
        elif _is_bound(parent, use) or _is_unpacked(source, use):
            found.given.append((use, None))
        else:
            found.read.append(use)
    if not found.given:
        raise ByHandError(f"{name} is first assigned somewhere else")
    return found


def _refuse_seen(source: SourceText, names: ScopeNames, use: cst.Name, scope: cst.CSTNode | None) -> None:
    """Refuses a variable that another function uses. A function with its own variable of this name does not count."""
    functions = [node for node in source.parents(use) if isinstance(node, cst.FunctionDef | cst.Lambda)]
    is_inside = scope is None or scope in functions
    is_shared = any(item.name.value == use.value for item in source.all(cst.NameItem))
    if is_shared or (is_inside and not any(owns(source, names, one, use.value) for one in functions if one != scope)):
        raise ByHandError(f"another function uses {use.value} on line {source.lines_of(use)[0]}")


def owns(source: SourceText, names: ScopeNames, function: cst.CSTNode | None, name: str) -> bool:
    """Whether the function has its own variable of this name."""
    own = [use for use in names.uses(name) if function_around(source, use) is function]
    return any(_value(source, use) is not None or _is_bound(next(source.parents(use)), use) for use in own)


def _value(source: SourceText, use: cst.Name) -> cst.BaseExpression | None:
    """Returns the value that this assignment gives the variable, or None. For `b` in `a, b = 0, 1` the value is 1."""
    parent = next(source.parents(use))
    if isinstance(parent, cst.AnnAssign) and parent.target is use:
        return parent.value
    if isinstance(parent, cst.AssignTarget):
        assign = next(source.parents(parent))
        return assign.value if isinstance(assign, cst.Assign) else None
    chain = list(source.parents(use))[:4]
    if len(chain) == 4 and isinstance(chain[1], cst.Tuple) and isinstance(chain[2], cst.AssignTarget):
        target, assign = chain[1], chain[3]
        values = assign.value if isinstance(assign, cst.Assign) else None
        if isinstance(values, cst.Tuple) and len(values.elements) == len(target.elements):
            at = next(at for at, element in enumerate(target.elements) if element.value is use)
            return values.elements[at].value
    return None


def _is_bound(parent: cst.CSTNode, use: cst.Name) -> bool:
    """Whether the name is bound by something other than an assignment."""
    places = [getattr(parent, place, None) for place in ("target", "name")]
    return isinstance(parent, _BINDERS) and (isinstance(parent, cst.Del) or use in places)


def _is_unpacked(source: SourceText, use: cst.Name) -> bool:
    """Whether the name is unpacked: `for a, b in pairs`, `a, b = pair`, `with f() as (a, b)`."""
    kinds = (cst.Element, cst.StarredElement, cst.Tuple, cst.List)
    inner: cst.CSTNode = use
    for outer in source.parents(use):
        if not isinstance(outer, kinds):
            is_target = isinstance(outer, cst.AssignTarget | cst.AsName)
            return is_target or (isinstance(outer, cst.For | cst.CompFor) and outer.target is inner)
        inner = outer
    return False
