"""The loops of the user's source that contain the running lines, read from the source text."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

from slipstream.seams.user_code import is_user_code

MAX_DEPTH = 60  # frames
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
Loop = ast.For | ast.AsyncFor | ast.While


class RunningLoop(NamedTuple):
    file: str
    loop: Loop
    frame: FrameType  # of the function that contains the loop


def loops_around(
    frame: FrameType | None, is_start: Callable[[FrameType], bool] = lambda _: True
) -> Iterator[RunningLoop]:
    """Yields the user's loops, innermost first. Starts at the first frame for which `is_start` returns True."""
    has_started = False
    for _ in range(MAX_DEPTH):
        if frame is None:
            return
        has_started = has_started or is_start(frame)
        file = frame.f_code.co_filename
        if has_started and is_user_code(file):
            found = [] if (tree := source_tree(file)) is None else _enclosing(tree, frame.f_lineno or 0)
            for loop in reversed(found):
                yield RunningLoop(file, loop, frame)
        frame = frame.f_back


@lru_cache(maxsize=64)
def source_tree(file: str) -> ast.Module | None:
    """Returns the parsed source, or None. Generated code may be nested too deeply for the parser."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _enclosing(tree: ast.Module, line: int) -> list[Loop]:
    """Returns the loops that contain the line, outermost first. Only loops of the innermost function around the line
    count."""
    loops: list[Loop] = []
    body: list[ast.stmt] = tree.body
    while body:
        at = next((one for one in body if one.lineno <= line <= (one.end_lineno or one.lineno)), None)
        if at is None:
            break
        if isinstance(at, SCOPES):
            loops = []
        elif isinstance(at, _LOOPS) and not any(_holds(one, line) for one in at.orelse):
            loops.append(at)
        body = [inner for one in ast.iter_child_nodes(at) for inner in _statements(one)]
    return loops


def _statements(node: ast.AST) -> list[ast.stmt]:
    """Returns the node itself if it is a statement, or the statements inside an except clause or a case."""
    if isinstance(node, (ast.ExceptHandler, ast.match_case)):
        return node.body
    return [node] if isinstance(node, ast.stmt) else []


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
