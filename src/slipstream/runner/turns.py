"""A loop of the user's that goes through all epochs again at every turn: folds, seeds, settings that are tried. Read
from the source of the frames that are running; how often it turns is not known."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

from slipstream.records import Site
from slipstream.seams.place import is_user_code

_MAX_DEPTH = 60
_COUNTS = {True: re.compile(r"epoch", re.IGNORECASE), False: re.compile(r"step|iter|epoch", re.IGNORECASE)}
# Inside an epoch only what by its name trains something else each time: others go through parts of one epoch.
_APART = re.compile(r"fold|split|seed|trial|client|member", re.IGNORECASE)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_Loop = ast.For | ast.AsyncFor | ast.While


def find_turns(frame: FrameType | None, has_epochs: bool, trainer: Any = None) -> Site | None:
    """The loop next to the one that counts epochs (or steps); to the call of the trainer, where a trainer counts."""
    loops = list(_loops_around(frame, trainer))
    if trainer is None:
        counting = [at for at, (_, loop) in enumerate(loops) if _COUNTS[has_epochs].search(_head(loop))]
        if not counting:
            return None
        inside, loops = loops[: counting[-1]], loops[counting[-1] + 1 :]
        loops = loops or [one for one in inside if _is_apart(one[1])]
    if not loops:
        return None
    file, loop = loops[0]
    return Site(file, loop.lineno, linecache.getline(file, loop.lineno).strip())


def _loops_around(frame: FrameType | None, trainer: Any) -> Iterator[tuple[str, _Loop]]:
    """Of the user's, innermost first; from the trainer's own frames outwards, if there is one."""
    is_outside = trainer is None
    for _ in range(_MAX_DEPTH):
        if frame is None:
            return
        file = frame.f_code.co_filename
        if not is_user_code(file):
            is_outside = is_outside or frame.f_locals.get("self") is trainer
        elif is_outside:
            found = [] if (tree := _tree(file)) is None else _enclosing(tree, frame.f_lineno or 0)
            yield from ((file, loop) for loop in reversed(found))
        frame = frame.f_back


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _enclosing(tree: ast.Module, line: int) -> list[_Loop]:
    """Loops that hold the line, outermost first, within the function that it is in."""
    loops: list[_Loop] = []
    body: list[ast.stmt] = tree.body
    while body:
        at = next((one for one in body if one.lineno <= line <= (one.end_lineno or one.lineno)), None)
        if at is None:
            break
        if isinstance(at, _SCOPES):
            loops = []
        elif isinstance(at, _LOOPS) and not any(_holds(one, line) for one in at.orelse):
            loops.append(at)
        body = [inner for one in ast.iter_child_nodes(at) for inner in _statements(one)]
    return loops


def _statements(node: ast.AST) -> list[ast.stmt]:
    """A statement itself; those of an except clause or a case, which hold some and are none."""
    if isinstance(node, (ast.ExceptHandler, ast.match_case)):
        return node.body
    return [node] if isinstance(node, ast.stmt) else []


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _is_apart(loop: _Loop) -> bool:
    """By what it counts: a loop over the batches of a fold names it too."""
    return not isinstance(loop, ast.While) and bool(_APART.search(ast.unparse(loop.target)))


def _head(loop: _Loop) -> str:
    if isinstance(loop, ast.While):
        return ast.unparse(loop.test)
    return f"{ast.unparse(loop.target)} {ast.unparse(loop.iter)}"
