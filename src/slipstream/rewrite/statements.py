"""Inserts statements into the user's source: before a recorded statement, at the script's start, or around a forward
pass. Also changes the callee or the input of a model's call.
"""

from __future__ import annotations

import re

import libcst as cst
from libcst.helpers import get_full_name_for_node

from slipstream.records import Edit
from slipstream.rewrite.errors import ByHandError
from slipstream.rewrite.locate import (
    block_around,
    call_by_name,
    calls_method,
    line_above,
    one_call_at,
    statement_at,
    statement_of,
)
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.source import SourceText, Splice

_BACKWARD = ("backward", "manual_backward")
_ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)


def as_written(names: ScopeNames, text: str) -> str:
    """Returns the text with the file's own name for torch."""
    return re.sub(r"\btorch\.", f"{names.torch or 'torch'}.", text)


def import_torch(source: SourceText, names: ScopeNames) -> list[Splice]:
    return [] if names.torch else import_module(source, names, "torch")


def import_module(source: SourceText, names: ScopeNames, module: str) -> list[Splice]:
    """Inserts `import module` before the file's first import from torch, unless the file has this import."""
    if names.local_name(module) == module:
        return []
    if names.is_given(module):
        raise ByHandError(f"the file uses the name {module} for something else")
    for statement in source.module.body:
        if isinstance(statement, cst.SimpleStatementLine) and _imports_from_torch(statement):
            start = source.line_start(source.lines_of(statement)[0])
            return [Splice(start, start, f"import {module}{source.newline}")]
    raise ByHandError("the file does not import torch at its top")


def _imports_from_torch(statement: cst.SimpleStatementLine) -> bool:
    names: list[str | None] = []
    for part in statement.body:
        if isinstance(part, cst.Import):
            names += [get_full_name_for_node(alias.name) for alias in part.names]
        elif isinstance(part, cst.ImportFrom) and part.module is not None and not part.relative:
            names.append(get_full_name_for_node(part.module))
    return any(name is not None and name.partition(".")[0] == "torch" for name in names)


def put_before(source: SourceText, names: ScopeNames, line: int, edit: Edit) -> list[Splice]:
    anchor: cst.CSTNode = one_call_at(source, names, line, edit.call) if edit.call else statement_at(source, line)
    statement = statement_of(source, anchor)
    text = edit.text
    if "{model}" in text:
        text = text.replace("{model}", _model_at(source, statement, edit.argument))
    text = as_written(names, text)
    for other in block_around(source, statement):
        if other is statement:
            break
        if source.code(other).strip() == text:
            return []
    above = line_above(source, statement)
    indent = source.indent_at(source.span(statement)[0])
    return [*import_torch(source, names), Splice(above, above, f"{indent}{text}{source.newline}")]


def _model_at(source: SourceText, statement: cst.CSTNode, called: str) -> str:
    """Returns the model whose parameters the statement takes. According to the session the optimizer has all of the
    model's parameters.
    """
    owners = {
        source.code(call.func.value)
        for call in source.all(cst.Call, statement)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("parameters", "named_parameters")
    }
    if len(owners) != 1:
        raise ByHandError(f"line {source.lines_of(statement)[0]} does not name the model by its parameters()")
    owner = owners.pop()
    if not re.fullmatch(r"[\w.]+", owner) or (owner == "self" and called != "self"):
        raise ByHandError(f"line {source.lines_of(statement)[0]} takes parameters of {owner}, which is not the model")
    return owner


def put_at_start(source: SourceText, names: ScopeNames, edit: Edit) -> list[Splice]:
    """Inserts a statement after the script's imports, with an empty line before it. If there are several statements,
    the patch keeps only the first empty line.
    """
    text = as_written(names, edit.text)
    for statement in source.all(cst.SimpleStatementLine):
        code = "; ".join(source.code(part).strip() for part in statement.body)
        if code == text:
            return []
        if _target(code) == _target(text):
            line = f"{source.path.name}:{source.lines_of(statement)[0]}"  # the edit itself has no line
            raise ByHandError(f"{line} has {code}: change it there")
    imports = import_torch(source, names)
    last = _last_import(source)
    below = source.line_start(source.lines_of(last)[1] + 1)
    gap = "" if source.line(source.lines_of(last)[1]).endswith(("\n", "\r")) else source.newline
    return [*imports, Splice(below, below, f"{gap}{source.newline}{text}{source.newline}")]


def _target(code: str) -> str:
    """Returns what the statement sets: the call without its arguments, or the left side of an assignment."""
    return re.split(r"\(|\s*=[^=]", code, maxsplit=1)[0].strip() if re.search(r"\(|=", code) else ""


def _last_import(source: SourceText) -> cst.CSTNode:
    """Returns the last top-level import before the first function, class, loop or condition that follows the import of
    torch."""
    last: cst.CSTNode | None = None
    has_torch = False
    for statement in source.module.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            if has_torch:
                break
        elif isinstance(statement.body[0], cst.Import | cst.ImportFrom):
            last, has_torch = statement, has_torch or _imports_from_torch(statement)
    if last is None or not has_torch:
        raise ByHandError("the file does not import torch at its top")
    return last


def put_around(source: SourceText, names: ScopeNames, line: int, edit: Edit) -> list[Splice]:
    """Wraps the code from the forward pass to the last statement that computes the loss. This statement comes before
    the backward pass, or is the function's return.
    """
    text = as_written(names, edit.text)
    statement = statement_of(source, call_by_name(source, line, edit.call)) if edit.call else statement_at(source, line)
    if any(_enters(source, node, text) for node in (statement, *source.parents(statement))):
        return []
    block = block_around(source, statement)
    first = block.index(statement)  # type: ignore[arg-type]
    last = first
    while not calls_method(source, block[last], *_BACKWARD):
        if _returns(block[last]):
            last += 1
            break
        last += 1
        if last == len(block):
            raise ByHandError(f"no backward() follows line {line} in its block: wrap the forward pass and the loss")
    while last > first + 1 and _only_clears(source, block[last - 1]):
        last -= 1
    last = _end_of_loss(source, block, first, last)
    if last == first:
        raise ByHandError(f"line {line} computes the loss and calls backward in one statement")
    return [*import_torch(source, names), *indented(source, block[first:last], f"with {text}:")]


def _end_of_loss(source: SourceText, block: list[cst.BaseStatement], first: int, last: int) -> int:
    """Returns the index after the last statement that assigns the loss, or `last` if no such statement is found. Later
    statements stay outside of the wrapped code.
    """
    calls = source.all(cst.Call, block[last]) if last < len(block) else []
    walked = [
        call.func.value for call in calls if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward"
    ]
    if len(walked) != 1 or not isinstance(walked[0], cst.Name):
        return last
    for at in range(last - 1, first - 1, -1):
        if any(node.value == walked[0].value for node in _stored(source, block[at])):
            return at + 1
    return last


def _stored(source: SourceText, statement: cst.CSTNode) -> list[cst.Name]:
    targets: list[cst.CSTNode] = [one.target for one in source.all(cst.AssignTarget, statement)]
    targets += [one.target for one in source.all(cst.AugAssign, statement)]
    targets += [one.target for one in source.all(cst.AnnAssign, statement)]
    return [name for target in targets for name in source.all(cst.Name, target)]


def _enters(source: SourceText, node: cst.CSTNode, text: str) -> bool:
    return isinstance(node, cst.With) and any(source.code(item.item) == text for item in node.items)


def _only_clears(source: SourceText, statement: cst.BaseStatement) -> bool:
    """Whether the statement is optimizer.zero_grad() on its own line."""
    is_short = isinstance(statement, cst.SimpleStatementLine) and len(source.all(cst.Call, statement)) == 1
    return is_short and calls_method(source, statement, "zero_grad")


def _returns(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[-1], cst.Return)


def indented(source: SourceText, statements: list[cst.BaseStatement], header: str) -> list[Splice]:
    """Indents the statements below a header. Lines that begin inside a string are not indented."""
    first, last = source.lines_of(statements[0])[0], source.lines_of(statements[-1])[1]
    inside = {
        line
        for node in source.all(cst.BaseString)  # type: ignore[type-abstract]
        for line in range(source.lines_of(node)[0] + 1, source.lines_of(node)[1] + 1)
    }
    indent = source.indent_at(source.span(statements[0])[0])
    unit = source.module.default_indent
    if indent and indent[0] != unit[0]:  # a file may have tabs in one block and spaces in another
        unit = "\t" if indent[0] == "\t" else " " * 4
    start = source.line_start(first)
    splices = [Splice(start, start, f"{indent}{header}{source.newline}")]
    for line in range(first, last + 1):
        if line not in inside and source.line(line).strip():
            begin = source.line_start(line)
            splices.append(Splice(begin, begin, unit))
    return splices


def call_otherwise(source: SourceText, names: ScopeNames, line: int, edit: Edit) -> list[Splice]:
    """Puts `compiled = torch.compile(model)` before the loop, and calls `compiled(x)` in the loop. The model itself
    stays unchanged.
    """
    done = [call for call in source.all(cst.Call) if source.code(call.func) == edit.text]
    if any(source.lines_of(call)[0] <= line <= source.lines_of(call)[1] for call in done):
        return []
    call = call_by_name(source, line, edit.call)
    if not names.is_free(edit.text):
        raise ByHandError(f"the name {edit.text} is already used")
    loop = outermost_loop(source, call)
    if loop is None or not calls_method(source, loop, *_BACKWARD):
        raise ByHandError(f"line {line} is not in a loop that trains")
    if any(source.code(one.target) == edit.call for one in source.all(cst.AssignTarget, loop)):
        raise ByHandError(f"the loop around line {line} assigns another value to {edit.call}")
    above, indent = line_above(source, loop), source.indent_at(source.span(loop)[0])
    text = f"{indent}{edit.text} = {as_written(names, edit.argument)}{source.newline}"
    start, end = source.span(call.func)
    return [*import_torch(source, names), Splice(above, above, text), Splice(start, end, edit.text)]


def outermost_loop(source: SourceText, node: cst.CSTNode) -> cst.CSTNode | None:
    """Returns the outermost loop around the node in its function."""
    found: cst.CSTNode | None = None
    for parent in source.parents(node):
        if isinstance(parent, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            break
        if isinstance(parent, cst.For | cst.While):
            found = parent
    return statement_of(source, found) if found is not None else None


def put_behind_input(source: SourceText, names: ScopeNames, line: int, edit: Edit) -> list[Splice]:
    call = call_by_name(source, line, edit.call)
    text = as_written(names, edit.text)
    argument = _input(call, edit.argument)
    if argument is None:
        raise ByHandError(f"the images are not an argument of their own on line {line}")
    value = argument.value
    if source.code(value).endswith(text):
        return []
    if isinstance(value, _ATOMS) or value.lpar:
        end = source.span(argument)[1]
        return [*import_torch(source, names), Splice(end, end, text)]
    start, end = source.span(value)
    return [*import_torch(source, names), Splice(start, start, "("), Splice(end, end, ")" + text)]


def _input(call: cst.Call, name: str) -> cst.Arg | None:
    if any(argument.star for argument in call.args):
        return None
    if name.isdigit():
        plain = [argument for argument in call.args if argument.keyword is None]
        return plain[int(name)] if int(name) < len(plain) else None
    return next((one for one in call.args if one.keyword is not None and one.keyword.value == name), None)
