"""Finds the number of steps after which the user's own loop stops: `if step >= args.max_steps: break`.

Reads values of variables and calls no function of the user."""

from __future__ import annotations

import argparse
import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

from slipstream.observe.user_loops import SCOPES, Loop, RunningLoop, loops_around

_COUNTER = re.compile(r"step|iter|batch|update|^(i|it|idx|n)$", re.IGNORECASE)
_EPOCH = re.compile(r"epoch", re.IGNORECASE)
_REACHES: dict[type[ast.cmpop], int] = {ast.GtE: 0, ast.Eq: 0, ast.Gt: 1}  # number that a comparison adds to the limit
_COMPARES: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}
_PLAIN = (int, float, str, bool, type(None))


class LoopLimit(NamedTuple):
    num_steps: int
    source: str  # "args.max_steps"
    is_per_epoch: bool  # the counter starts again in every epoch


class _UnknownError(Exception):
    pass


def find_limit(frame: FrameType | None) -> LoopLimit | None:
    """Returns the limit of the outermost loop that has one. If this loop has several limits, returns the smallest."""
    loops = list(loops_around(frame))
    for position in reversed(range(len(loops))):
        running = loops[position]
        limits = [limit for test in _tests(running.loop) if (limit := _limit(test, running, loops[position + 1 :]))]
        if limits:
            return min(limits, key=lambda limit: limit.num_steps)
    return None


def _tests(loop: Loop) -> Iterator[ast.expr]:
    """Yields the conditions of the `if` statements that end the loop. The condition of a `while` loop is not yielded,
    because `find_length` finds its limits by the names of variables."""
    waiting: list[ast.stmt] = list(loop.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.If) and any(isinstance(one, (ast.Break, ast.Return)) for one in statement.body):
            yield statement.test
        if not isinstance(statement, (*SCOPES, ast.For, ast.AsyncFor, ast.While)):  # a break in these ends another loop
            waiting += [inner for inner in ast.iter_child_nodes(statement) if isinstance(inner, ast.stmt)]


def _limit(test: ast.expr, running: RunningLoop, around: list[RunningLoop]) -> LoopLimit | None:
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    frame, found = running.frame, None
    try:
        for part in parts:
            if found is None and (limit := _reached(part, frame)) is not None:
                found = LoopLimit(*limit, is_per_epoch=_starts_again(part, running, around))
            elif not _plain(_value(part, frame)):
                return None  # with this value the loop does not end here
    except _UnknownError:
        return None
    return found


def _reached(part: ast.expr, frame: FrameType) -> tuple[int, str] | None:
    """Returns the limit and its text, if the expression compares a counter of steps with a number."""
    if not isinstance(part, ast.Compare) or len(part.ops) != 1 or type(part.ops[0]) not in _REACHES:
        return None
    counter, limit = part.left, part.comparators[0]
    is_next = isinstance(counter, ast.BinOp) and isinstance(counter.op, ast.Add)  # step + 1 == limit
    name = _last_name(counter.left if isinstance(counter, ast.BinOp) and is_next else counter)
    if not _COUNTER.search(name) or _EPOCH.search(name):
        return None
    value = _value(limit, frame)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9 or value != int(value):
        return None
    return int(value) + _REACHES[type(part.ops[0])], ast.unparse(limit)


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _starts_again(part: ast.expr, running: RunningLoop, around: list[RunningLoop]) -> bool:
    """Whether the counter starts again in every iteration of an outer loop.

    This holds for the variable of the inner `for` loop, for a local variable of a function that is called in a loop,
    and for a variable that an outer loop of the same function sets."""
    assert isinstance(part, ast.Compare)
    names = {node.id for node in ast.walk(part.left) if isinstance(node, ast.Name)}
    if any(isinstance(node, ast.Attribute) for node in ast.walk(part.left)) or not around:
        return False
    if not isinstance(running.loop, ast.While) and names & _stored(running.loop.target):
        return True
    same = [one for one in around if one.frame is running.frame]
    if len(same) < len(around) and names <= set(running.frame.f_code.co_varnames) - _arguments(running.frame):
        return True
    set_again = (node for one in same for node in one.loop.body if isinstance(node, ast.Assign))
    return any(names & _stored(target) for node in set_again for target in node.targets)


def _stored(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _arguments(frame: FrameType) -> set[str]:
    code = frame.f_code
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Evaluates names, fields of plain containers and comparisons of plain values."""
    value: Any
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Name):
        value = _of(frame.f_locals, node.id) if node.id in frame.f_locals else _of(frame.f_globals, node.id)
    elif isinstance(node, ast.Attribute):
        value = _of(_fields(_value(node.value, frame)), node.attr)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        value = _of(_fields(_value(node.value, frame)), node.slice.value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value = not _plain(_value(node.operand, frame))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARES:
        left, right = _value(node.left, frame), _value(node.comparators[0], frame)
        try:
            value = _COMPARES[type(node.ops[0])](_plain(left), _plain(right))
        except TypeError as error:
            raise _UnknownError from error
    else:
        raise _UnknownError
    return value


def _plain(value: Any) -> Any:
    if type(value) not in _PLAIN:
        raise _UnknownError
    return value


def _fields(value: Any) -> Mapping[Any, Any]:
    if type(value) is dict:
        return value
    if isinstance(value, (argparse.Namespace, SimpleNamespace)) or hasattr(type(value), "__dataclass_fields__"):
        fields: Mapping[Any, Any] = vars(value)
        return fields
    raise _UnknownError


def _of(values: Mapping[Any, Any], name: Any) -> Any:
    if name not in values:
        raise _UnknownError
    return values[name]
