"""Adds a loss scaler for fp16. The scaler is created before the loop, and used around backward, step and clipping.

A loop is edited only if the file has exactly one backward() and one step() of the optimizer, and both calls are in the
block of the forward pass. All other loops are left to the user.
"""

from __future__ import annotations

import libcst as cst

from slipstream.records import Edit
from slipstream.rewrite.errors import ByHandError
from slipstream.rewrite.locate import block_around, call_by_name, calls_method, line_above, statement_of
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.source import SourceText, Splice
from slipstream.rewrite.statements import as_written, import_torch, outermost_loop

NAME = "scaler"
_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


def scale_loss(source: SourceText, names: ScopeNames, line: int, edit: Edit) -> list[Splice]:
    """Adds the scaler. `edit.argument` is the optimizer's class, and `edit.text` the expression for the scaler."""
    call = call_by_name(source, line, edit.call)
    block, loop = block_around(source, statement_of(source, call)), outermost_loop(source, call)
    if loop is not None and f"{NAME}.scale(" in source.code(loop):
        return []
    optimizer = _optimizer(source, names, edit.argument)
    if loop is None or not names.is_free(NAME):
        raise ByHandError(f"line {line} is not in a loop" if loop is None else f"the name {NAME} is already used")
    backward, step = _only(source, block, "backward", ""), _only(source, block, "step", optimizer)
    between = block[block.index(backward) + 1 : block.index(step)]
    if block.index(backward) > block.index(step) or any(".grad" in source.code(one) for one in between):
        raise ByHandError(f"gradients are used between backward() and step() below line {line}")
    loss = source.code(backward)[: -len(".backward()")]
    above, indent = line_above(source, loop), source.indent_at(source.span(loop)[0])
    splices = [*import_torch(source, names)]
    splices.append(Splice(above, above, f"{indent}{NAME} = {as_written(names, edit.text)}{source.newline}"))
    splices.append(Splice(*source.span(backward), f"{NAME}.scale({loss}).backward()"))
    splices += _unscaled(source, names, between, optimizer)
    inner = source.indent_at(source.span(step)[0])
    text = f"{NAME}.step({optimizer}){source.newline}{inner}{NAME}.update()"
    return [*splices, Splice(*source.span(step), text)]


def _optimizer(source: SourceText, names: ScopeNames, class_name: str) -> str:
    found = {
        source.code(node.targets[0].target)
        for node in source.all(cst.Assign)
        if isinstance(node.value, cst.Call) and names.is_call_of(node.value, class_name)
    }
    if len(found) != 1:
        raise ByHandError(f"the file does not assign exactly one {class_name}(...) to a name")
    return found.pop()


def _only(source: SourceText, block: list[cst.BaseStatement], method: str, owner: str) -> cst.BaseStatement:
    """Returns the only statement of the file that calls this method, on a line of its own and without arguments."""
    calls = [
        call
        for call in source.all(cst.Call)
        if isinstance(call.func, cst.Attribute)
        and call.func.attr.value == method
        and owner in ("", source.code(call.func.value))
    ]
    if len(calls) == 1 and not calls[0].args:
        for one in block:
            if isinstance(one, cst.SimpleStatementLine) and source.code(one).strip() == source.code(calls[0]):
                return one
    raise ByHandError(f"{owner or 'the loss'}.{method}() is not one plain statement beside the forward pass")


def _unscaled(source: SourceText, names: ScopeNames, between: list[cst.BaseStatement], optimizer: str) -> list[Splice]:
    """Returns the insertion that unscales the gradients before they are clipped."""
    clips = [one for one in between if calls_method(source, one, *_CLIPS) or _calls(source, names, one)]
    if not clips:
        return []
    start = source.line_start(source.lines_of(clips[0])[0])
    indent = source.indent_at(start)
    return [Splice(start, start, f"{indent}{NAME}.unscale_({optimizer}){source.newline}")]


def _calls(source: SourceText, names: ScopeNames, node: cst.CSTNode) -> bool:
    return any(names.is_call_of(call, clip) for call in source.all(cst.Call, node) for clip in _CLIPS)
