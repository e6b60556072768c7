"""Adds activation checkpointing to the one loop in a model's `forward` that calls block after block.

Checkpointing repeats the forward pass of a block. A file with batch norm is refused, because a second pass changes its
statistics. A call that seems to pass on a cache is refused, because a second pass makes the cache grow.
"""

from __future__ import annotations

import re

import libcst as cst

from slipstream.records import Edit
from slipstream.rewrite.arguments import add_arguments
from slipstream.rewrite.errors import ByHandError
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.source import SourceText, Splice

MODULE = "torch.utils.checkpoint"
_CHANGES = re.compile(r"BatchNorm|SyncBatchNorm|InstanceNorm|track_running_stats")
_CACHE = re.compile(r"cache|past|hidden_states_list|state")


def compute_again(source: SourceText, names: ScopeNames, edit: Edit) -> list[Splice]:
    loops = [loop for loop in source.all(cst.For) if _is_in_forward(source, loop)]
    if any(source.code(call.func) == f"{MODULE}.checkpoint" for loop in loops for call in source.all(cst.Call, loop)):
        return []
    calls = [call for loop in loops for call in _calls_of_blocks(source, loop)]
    if len(calls) != 1:
        raise ByHandError(f"{source.path.name} has {len(calls) or 'no'} calls of blocks in a loop, instead of one")
    call, line = calls[0], source.lines_of(calls[0])[0]
    if found := _CHANGES.search(source.text):
        raise ByHandError(f"{source.path.name} has {found.group()}, and a second pass would change its statistics")
    if not call.args or _CACHE.search(", ".join(source.code(one) for one in call.args)):
        raise ByHandError(f"line {line} may pass on an object that a block changes")
    block = source.code(call.func)
    opening = source.span(call.args[0])[0]
    return [
        *_import(source, names),
        Splice(*source.span(call.func), f"{MODULE}.checkpoint"),
        Splice(opening, opening, f"{block}, "),
        *add_arguments(source, call, ["use_reentrant=False"]),
    ]


def _is_in_forward(source: SourceText, loop: cst.For) -> bool:
    function = next((one for one in source.parents(loop) if isinstance(one, cst.FunctionDef)), None)
    return function is not None and function.name.value == "forward" and "self." in source.code(loop.iter)


def _calls_of_blocks(source: SourceText, loop: cst.For) -> list[cst.Call]:
    """Returns the calls of the loop's own variable whose result is assigned."""
    own = {node.value for node in source.all(cst.Name, loop.target)}
    calls = [call for call in source.all(cst.Call, loop.body) if source.code(call.func) in own]
    kept = (cst.Assign, cst.AnnAssign, cst.AugAssign)
    return [call for call in calls if any(isinstance(one, kept) for one in source.parents(call))]


def _import(source: SourceText, names: ScopeNames) -> list[Splice]:
    if names.is_given("torch"):
        raise ByHandError("the file uses the name torch for something else")
    for statement in source.module.body:
        code = source.code(statement).split() if isinstance(statement, cst.SimpleStatementLine) else []
        if code[:1] in (["import"], ["from"]) and code[1].partition(".")[0] == "torch":
            below = source.line_start(source.lines_of(statement)[1] + 1)
            return [Splice(below, below, f"import {MODULE}{source.newline}")]
    raise ByHandError("the file does not import torch at its top")
