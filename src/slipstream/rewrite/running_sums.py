"""Keeps a running sum on the device. `total += loss.item()` in every step makes the host wait for the device.

With the edit the sum is read only where it is used. It has the same bits as before, except on MPS. An edit is made only
if the text shows every place that reads the sum, and if none of these places runs in every step.
"""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from slipstream.records import Edit
from slipstream.rewrite.errors import ByHandError, MissingError
from slipstream.rewrite.locate import statement_at, statement_of
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.scopes import Variable, variable_of
from slipstream.rewrite.source import SourceText, Splice

_COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le", "isclose")
_ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)
_ZEROS = ("0", "0.", "0.0", ".0", "0.00")


class _Read(NamedTuple):
    """A call `loss.item()` or `float(loss)`, and the tensor that it reads."""

    call: cst.Call
    tensor: cst.BaseExpression


def keep_sum_on_device(source: SourceText, names: ScopeNames, line: int, edit: Edit) -> list[Splice]:
    """Keeps the sum on this line on the device. `edit.argument` is the conversion that makes a sum of floats as exact
    as Python's, or "" if the device does not support it."""
    statement = statement_at(source, line)
    adds = [one for one in source.all(cst.AugAssign, statement) if isinstance(one.operator, cst.AddAssign)]
    if len(adds) != 1 or not isinstance(adds[0].target, cst.Name):
        raise MissingError(f"line {line} does not add to one variable")
    add, name = adds[0], adds[0].target.value
    reads = [read for call in source.all(cst.Call, add) if (read := _read(call)) is not None]
    if not reads and ".detach()" in source.code(add):
        return []
    if len(reads) != 1 or not _is_term(add.value, reads[0].call):
        raise ByHandError(f"line {line} does more than add one number from the device")
    loop = _loop_around(source, add)
    if loop is None:
        raise ByHandError(f"no loop contains line {line}")
    variable = variable_of(source, names, name, add)
    kind = _kind(source, names, variable, reads[0], loop)
    if kind == "int" and add.value is not reads[0].call:
        raise ByHandError(f"whether {name} is a whole number is not clear from the text")
    inside = [use for use in variable.read if loop in source.parents(use)]
    splices = [_detached(source, reads[0], edit.argument if kind == "float" else "")]
    splices += [_as_number(source, add, use, loop, kind) for use in inside]
    if len(inside) < len(variable.read):
        splices.append(_behind(source, loop, variable, inside, f"{name} = {kind}({name})"))
    return splices


def _read(call: cst.Call) -> _Read | None:
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "item" and not call.args:
        return _Read(call, call.func.value)
    if isinstance(call.func, cst.Name) and call.func.value == "float" and len(call.args) == 1:
        return _Read(call, call.args[0].value)
    return None


def _is_term(value: cst.BaseExpression, call: cst.Call) -> bool:
    """Whether the expression is the call, or a product with the call. The product is the same in Python and on the
    device."""
    if value is call:
        return True
    if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Multiply):
        return False
    return any(_is_term(side, call) for side in (value.left, value.right))


def _loop_around(source: SourceText, node: cst.CSTNode) -> cst.For | cst.While | None:
    for parent in source.parents(node):
        if isinstance(parent, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            return None
        if isinstance(parent, cst.For | cst.While):
            return parent
    return None


def _kind(source: SourceText, names: ScopeNames, variable: Variable, read: _Read, loop: cst.CSTNode) -> str:
    """Returns the Python type of the final sum, from its first values or from what is added."""
    if len(variable.added) > 1:
        raise ByHandError(f"something else is also added to {variable.name}")
    codes = [source.code(value) if value is not None else "?" for _, value in variable.given]
    for (node, _), code in zip(variable.given, codes, strict=True):
        if code not in _ZEROS:
            raise ByHandError(f"line {source.lines_of(node)[0]} sets {variable.name} to a value other than 0")
    if any("." in code for code in codes) or _has_backward(source, read.tensor, loop):
        return "float"
    if _counts(source, names, read.tensor):
        return "int"
    raise ByHandError(f"whether {variable.name} is a whole number is not clear from the text")


def _has_backward(source: SourceText, tensor: cst.BaseExpression, loop: cst.CSTNode) -> bool:
    """Whether backward is called on the value. A value with gradients is not an integer."""
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "backward"
        and any(source.code(node) == source.code(tensor) for node in source.all(type(tensor), call))
        for call in source.all(cst.Call, loop)
    )


def _counts(source: SourceText, names: ScopeNames, tensor: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether the value is a count: `(guess == y).sum()`, `guess.eq(y).sum()`, `torch.sum(guess == y)`, or a name for
    one of these.
    """
    if isinstance(tensor, cst.Name) and depth < 2:
        values = [value for _, value in variable_of(source, names, tensor.value, tensor).given]
        return all(value is not None and _counts(source, names, value, depth + 1) for value in values)
    if (
        not isinstance(tensor, cst.Call)
        or not isinstance(tensor.func, cst.Attribute)
        or tensor.func.attr.value != "sum"
    ):
        return False
    inner: cst.BaseExpression = tensor.func.value
    if source.code(inner) == (names.torch or "torch") and len(tensor.args) == 1:
        inner = tensor.args[0].value
    elif tensor.args:
        return False
    if isinstance(inner, cst.Comparison):
        return True
    method = inner.func.attr.value if isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute) else ""
    return method in _COMPARISONS


def _detached(source: SourceText, read: _Read, exact: str) -> Splice:
    text = source.code(read.tensor)
    # The span of a node does not include its own parentheses.
    if not isinstance(read.tensor, _ATOMS) or read.tensor.lpar:
        text = f"({text})"
    return Splice(*source.span(read.call), f"{text}.detach(){exact}")


def _as_number(source: SourceText, add: cst.AugAssign, use: cst.Name, loop: cst.CSTNode, kind: str) -> Splice:
    line = source.lines_of(use)[0]
    chain = list(source.parents(use))
    if add in chain or not _is_now_and_then(chain[: chain.index(loop)], use):
        raise ByHandError(f"line {line} reads {use.value} in every step")
    if any(isinstance(node, cst.FormattedStringExpression) and node.equal is not None for node in chain):
        raise ByHandError(f"line {line} prints {use.value} with its name")
    return Splice(*source.span(use), f"{kind}({use.value})")


def _is_now_and_then(chain: list[cst.CSTNode], use: cst.CSTNode) -> bool:
    """Whether a condition inside the loop guards the use. A use in the test of the condition is not guarded, because
    the test runs in every step."""
    inner = use
    for outer in chain:
        if isinstance(outer, cst.If) and inner is not outer.test:
            return True
        inner = outer
    return False


def _behind(source: SourceText, loop: cst.CSTNode, variable: Variable, inside: list[cst.Name], text: str) -> Splice:
    """Inserts one read after the loop, so that all later uses see a number."""
    later = [use for use in variable.read if use not in inside]
    for around in _catchers(source, loop):
        for use in later:
            if not {around.body, getattr(around, "orelse", None)} & set(source.parents(use)):
                raise ByHandError(
                    f"line {source.lines_of(use)[0]} may read {variable.name} after an exception in the loop"
                )
    statement = statement_of(source, loop)
    last = source.lines_of(statement)[1]
    below = source.line_start(last + 1)
    gap = "" if source.line(last).endswith(("\n", "\r")) else source.newline
    return Splice(below, below, f"{gap}{source.indent_at(source.span(statement)[0])}{text}{source.newline}")


def _catchers(source: SourceText, loop: cst.CSTNode) -> list[cst.Try | cst.TryStar | cst.With]:
    """Returns the statements around the loop after which the script may continue although the loop raised."""
    found: list[cst.Try | cst.TryStar | cst.With] = []
    for parent in source.parents(loop):
        if isinstance(parent, cst.FunctionDef | cst.Lambda):
            break
        is_try = isinstance(parent, cst.Try | cst.TryStar) and parent.body in source.parents(loop)
        is_with = isinstance(parent, cst.With) and any("suppress" in source.code(item) for item in parent.items)
        if is_try or is_with:
            found.append(parent)  # type: ignore[arg-type]
    return found
