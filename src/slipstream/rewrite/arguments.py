"""Edits the arguments of one observed call.

A new argument is added after the last argument, or to keywords that the call unpacks. An existing argument is changed
if the source has the value that the session recorded. Either all edits of a call are written or none, because some of
them alone may be worse than none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import libcst as cst

from slipstream.records import Edit
from slipstream.rewrite.errors import ByHandError, MissingError
from slipstream.rewrite.locate import calls_at, one_call_at
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.own_loader import use_own_loader
from slipstream.rewrite.source import SourceText, Splice

# Arguments that may be given by position, in torch's own order.
_LOADER = ["dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory"]
POSITIONS = {
    "DataLoader": [*_LOADER, "drop_last", "timeout", "worker_init_fn", "multiprocessing_context"],
    "set_num_threads": ["int"],
    "to": ["device", "dtype", "non_blocking", "copy"],
    "cuda": ["device", "non_blocking"],
}
_FRAMEWORK = "TrainingArguments"


def change_arguments(source: SourceText, names: ScopeNames, line: int, edits: Sequence[Edit]) -> list[Splice]:
    """Changes the arguments of the call at this line, and torch's DataLoader to slipstream's. All edits refer to this
    call."""
    callee, num_calls = edits[0].call, edits[0].num_calls
    if num_calls > 1:
        calls = calls_at(source, names, line, callee)
        if len(calls) != num_calls:
            raise (ByHandError if calls else MissingError)(f"{len(calls)} of the {num_calls} calls are on line {line}")
    elif callee == _FRAMEWORK:
        calls = [_only_call(source, names, line, callee)]
    else:
        calls = [one_call_at(source, names, line, callee)]
    arguments = [edit for edit in edits if edit.kind == "argument"]
    splices = [splice for call in calls for splice in _change_call(source, names, call, arguments)]
    if any(edit.kind == "loader" for edit in edits):
        splices += [splice for call in calls for splice in use_own_loader(source, names, call)]
    return splices


def _only_call(source: SourceText, names: ScopeNames, line: int, callee: str) -> cst.Call:
    """Returns the one call that configures a framework. It may be on another line than the observed line."""
    found = [call for call in source.all(cst.Call) if names.is_call_of(call, callee)]
    return found[0] if len(found) == 1 else one_call_at(source, names, line, callee)


def _change_call(source: SourceText, names: ScopeNames, call: cst.Call, edits: Sequence[Edit]) -> list[Splice]:
    splices: list[Splice] = []
    missing: list[Edit] = []
    for edit in edits:
        given = _given(source, names, call, edit)
        if given is not None:
            splices += _change(source, given, edit)
        else:
            missing.append(edit)
    added = [edit for edit in missing if not edit.is_if_given]
    if not added:
        return splices
    _refuse_unknown(source, names, call, edits)
    if unknown := [argument for argument in call.args if _is_unknown(names, argument)]:
        return [*splices, _override(source, unknown[-1], missing)]
    texts = [edit.text if edit.argument == "int" else f"{edit.argument}={edit.text}" for edit in added]
    return [*splices, *add_arguments(source, call, texts)]


def _is_unknown(names: ScopeNames, argument: cst.Arg) -> bool:
    """Whether the argument is `**keywords` whose keys the file does not show. Such keywords may contain the argument
    already.
    """
    return argument.star == "**" and isinstance(argument.value, cst.Name) and names.keywords_of(argument) is None


def _override(source: SourceText, argument: cst.Arg, edits: Sequence[Edit]) -> Splice:
    """Overrides the argument in the call. This is correct for every content of the dictionary, and does not change the
    dictionary for other calls.
    """
    own = "".join(f', "{edit.argument}": {edit.text}' for edit in edits)
    return Splice(*source.span(argument.value), f"{{**{source.code(argument.value)}{own}}}")


def _given(source: SourceText, names: ScopeNames, call: cst.Call, edit: Edit) -> cst.BaseExpression | None:
    """Returns the argument's value, if the call has it or unpacks a dictionary that has it."""
    positions = POSITIONS.get(edit.call, [])
    for index, argument in enumerate(call.args):
        if argument.keyword is not None and argument.keyword.value == edit.argument:
            return argument.value
        if argument.keyword is None and argument.star == "" and positions[index : index + 1] == [edit.argument]:
            return argument.value
        if argument.star == "*":
            positions = []
        if argument.star == "**" and isinstance(argument.value, cst.Dict):
            return _entry(argument.value, edit.argument)
        value = (names.keywords_of(argument) or {}).get(edit.argument)
        if value is not None and names.num_spreads(argument) > 1 and source.code(value) != edit.text:
            line = source.lines_of(value)[0]
            raise ByHandError(f"other calls also use {source.code(argument.value)} on line {line}")
        if value is not None:
            return value
    return None


def _entry(value: cst.Dict, key: str) -> cst.BaseExpression | None:
    """Returns the value of a key in a dictionary that is written in the call itself. The last entry counts."""
    for element in reversed(value.elements):
        if not isinstance(element, cst.DictElement):
            return None
        if isinstance(element.key, cst.SimpleString) and element.key.evaluated_value == key:
            return element.value
    return None


def _refuse_unknown(source: SourceText, names: ScopeNames, call: cst.Call, edits: Sequence[Edit]) -> None:
    """Refuses a call whose unpacked arguments may already contain the new argument, and a call to which no argument can
    be added."""
    line = source.lines_of(call)[0]
    for argument in call.args:
        if argument.star and names.keywords_of(argument) is None and not _is_unknown(names, argument):
            what = argument.star + source.code(argument.value)
            raise ByHandError(f"the call on line {line} takes arguments from {what}: add the argument there")
        if isinstance(argument.value, cst.GeneratorExp) and not argument.value.lpar:
            raise ByHandError(f"the call on line {line} has a generator without parentheses, which must stay alone")
    if call.args and edits[0].call in ("to", "cuda") and _value(source.code(call.args[-1].value)) in (True, False):
        raise ByHandError(f"the call on line {line} passes its flags without names")


def _change(source: SourceText, given: cst.BaseExpression, edit: Edit) -> list[Splice]:
    now = source.code(given)
    line = source.lines_of(given)[0]
    if now == edit.text:
        return []
    value = _value(now)
    if value is _NOT_A_LITERAL:
        if _value(edit.text) == _value(edit.observed):  # the script already used the wanted value
            return []
        raise ByHandError(f"line {line} takes {edit.argument} from {now}: set {now} to {edit.text}")
    if value == _value(edit.text):
        return []
    if edit.observed and value is not None and value != _value(edit.observed):  # None: torch's own default
        raise ByHandError(f"line {line} has {edit.argument}={now}, but the session saw {edit.observed}: tune again")
    return [Splice(*source.span(given), edit.text)]


_NOT_A_LITERAL = object()


def _value(code: str) -> object:
    try:
        return ast.literal_eval(code) if code else _NOT_A_LITERAL
    except (ValueError, SyntaxError, TypeError, MemoryError):
        return _NOT_A_LITERAL


def add_arguments(source: SourceText, call: cst.Call, added: Sequence[str]) -> list[Splice]:
    """Adds arguments after the last one. If the last one has a line of its own, the new ones get lines of their own."""
    if not call.args:
        opening = source.data.index(b"(", source.span(call.func)[1]) + 1
        return [Splice(opening, opening, ", ".join(added))]
    last = call.args[-1]
    start, end = source.span(last)
    has_comma = isinstance(last.comma, cst.Comma)
    behind = end
    if has_comma:
        comma = re.compile(rb"\s*,").match(source.data, end)
        if comma is None:
            raise ByHandError(
                f"there is a comment between the last argument on line {source.line_of(end)} and its comma"
            )
        behind = comma.end()
    if _has_own_lines(source, call, start, behind):
        indent = source.data[source.line_start(source.line_of(start)) : start].decode()
        lines = [f"{indent}{one}," for one in added]
        lines[-1] = lines[-1] if has_comma else lines[-1][:-1]
        below = source.line_start(source.line_of(behind - 1) + 1)
        separator = [] if has_comma else [Splice(end, end, ",")]
        return [*separator, Splice(below, below, "".join(line + source.newline for line in lines))]
    return [Splice(end, end, "".join(f", {one}" for one in added))]


def _has_own_lines(source: SourceText, call: cst.Call, start: int, behind: int) -> bool:
    """Whether the last argument begins a line, and at most a comment follows it on that line."""
    line = source.line_of(start)
    before = source.data[source.line_start(line) : start]
    after = source.data[behind : source.line_start(source.line_of(behind - 1) + 1)].strip()
    is_open = source.span(call)[0] < source.line_start(line)
    return is_open and not before.strip() and (not after or after.startswith(b"#"))
