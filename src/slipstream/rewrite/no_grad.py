"""Disables gradients in an evaluation that ran with gradients, either for its whole function or for its loop.

A function is edited only if it calls eval() and makes no call that needs gradients. A loop is edited only if eval()
comes before it, if it makes no call that needs gradients, and if its function later calls backward on no value that the
loop assigns.
"""

from __future__ import annotations

import contextlib

import libcst as cst

from slipstream.records import Edit
from slipstream.rewrite.errors import ByHandError
from slipstream.rewrite.locate import block_around, calls_method, function_around, statement_at
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.source import SourceText, Splice
from slipstream.rewrite.statements import as_written, import_torch, indented

_NEEDS_GRADIENTS = ("backward", "manual_backward", "step", "grad", "requires_grad_", "enable_grad", "set_grad_enabled")
_PLAIN_DECORATORS = ("staticmethod", "classmethod")
_SWITCHES = ("no_grad", "inference_mode")


def switch_gradients_off(source: SourceText, names: ScopeNames, line: int, edit: Edit) -> list[Splice]:
    """Disables gradients for the evaluation on this line. `edit.call` is the name of the training function, which is
    never changed as a whole."""
    statement, text = statement_at(source, line), as_written(names, edit.text)
    if any(_is_off(source, node) for node in (statement, *source.parents(statement))):
        return []
    function = function_around(source, statement)
    if isinstance(function, cst.FunctionDef) and function.name.value != edit.call:
        try:
            return _decorate(source, names, function, text)
        except ByHandError as why:
            with contextlib.suppress(ByHandError):
                return _wrap_loop(source, names, line, statement, text)
            raise why from None
    return _wrap_loop(source, names, line, statement, text)


def _wrap_loop(source: SourceText, names: ScopeNames, line: int, statement: cst.CSTNode, text: str) -> list[Splice]:
    function = function_around(source, statement)
    loops = [node for node in (statement, *source.parents(statement)) if isinstance(node, cst.For)]
    loops = [loop for loop in loops if not calls_method(source, loop, *_NEEDS_GRADIENTS)]
    if not loops or function_around(source, loops[-1]) is not function:
        raise ByHandError(f"no separate loop contains line {line}")
    if source.all(cst.Yield, loops[-1]):
        raise ByHandError(f"the loop around line {line} yields its results one by one")
    if not _follows_eval(source, loops[-1]):
        raise ByHandError(f"no eval() comes before the loop around line {line}: it may also be used for training")
    _refuse_later_backward(source, loops[-1], function)
    return [*import_torch(source, names), *indented(source, [loops[-1]], f"with {text}:")]


def _follows_eval(source: SourceText, loop: cst.For) -> bool:
    """Whether the last call of eval() or train() before the loop in its block is eval()."""
    statements = block_around(source, loop)
    for statement in reversed(statements[: statements.index(loop)]):
        if calls_method(source, statement, "eval", "train"):
            return calls_method(source, statement, "eval") and not calls_method(source, statement, "train")
    return False


def _is_off(source: SourceText, node: cst.CSTNode) -> bool:
    items = node.items if isinstance(node, cst.With) else ()
    codes = [source.code(item.item) for item in items]
    if isinstance(node, cst.FunctionDef):
        codes = [source.code(decorator.decorator) for decorator in node.decorators]
    return any(switch in code for code in codes for switch in _SWITCHES)


def _decorate(source: SourceText, names: ScopeNames, function: cst.FunctionDef, text: str) -> list[Splice]:
    name, line = function.name.value, source.lines_of(function)[0]
    if calls_method(source, function, *_NEEDS_GRADIENTS):
        raise ByHandError(f"{name} on line {line} also calls backward, steps or uses gradients")
    if function.asynchronous is not None or source.all(cst.Yield, function):
        raise ByHandError(f"{name} on line {line} yields its results one by one")
    if name == "forward" or not calls_method(source, function, "eval"):
        raise ByHandError(f"{name} on line {line} may also be used for training")
    others = [source.code(decorator.decorator) for decorator in function.decorators]
    if any(other not in _PLAIN_DECORATORS for other in others):
        raise ByHandError(f"{name} on line {line} has decorators of its own")
    start = source.line_start(line)
    indent = source.indent_at(start)
    return [*import_torch(source, names), Splice(start, start, f"{indent}@{text}{source.newline}")]


def _refuse_later_backward(source: SourceText, loop: cst.For, function: cst.CSTNode | None) -> None:
    """Refuses a loop if backward is called on one of its results after the loop."""
    made = {source.code(target.target) for target in source.all(cst.AssignTarget, loop)}
    made |= {source.code(one.target) for one in source.all(cst.AugAssign, loop)}
    end = source.span(loop)[1]
    for call in source.all(cst.Call, function or source.module):
        if source.span(call)[0] < end or not isinstance(call.func, cst.Attribute):
            continue
        owner = source.code(call.func.value)
        if call.func.attr.value == "backward" and owner in made:
            raise ByHandError(f"line {source.lines_of(call)[0]} calls backward on {owner}, which the loop computes")
