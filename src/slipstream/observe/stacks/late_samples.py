"""Corrects stack samples that come too late. The interpreter checks for signals at calls and jumps, but not during
arithmetic and not at a return. A sample of what a dataset computes after its last call (`return self.raw[i] @
self.basis`) is therefore taken in torch's code, after the return. This module assigns a late sample to the line of the
computation."""

from __future__ import annotations

import ast
import dis
import linecache
from collections import Counter
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from slipstream.seams.user_code import is_user_code

_FETCHING = "torch/utils/data/_utils/fetch.py"
_WRAPPED = 4  # maximum nesting of datasets, such as a Subset of a Subset


class LateSamples(NamedTuple):
    code: CodeType
    line: int


def returned_from(leaf: FrameType) -> LateSamples | None:
    """Returns the user's `__getitem__` that has just returned to the given frame of torch, and the line of its
    arithmetic. If the method does not end in arithmetic (`return self.x[i], self.y[i]`), returns None: the stack sample
    stays where it is."""
    fetching: FrameType | None = leaf
    if not _is_fetching(leaf):
        fetching = leaf.f_back if _is_entered(leaf) else None
    if fetching is None or not _is_fetching(fetching):
        return None
    code = _getitem_of(getattr(fetching.f_locals.get("self"), "dataset", None))
    line = line_of_arithmetic(code) if code is not None and is_user_code(code.co_filename) else None
    return LateSamples(code, line) if code is not None and line is not None else None


def _is_fetching(frame: FrameType) -> bool:
    return frame.f_code.co_filename.replace("\\", "/").endswith(_FETCHING)


def _is_entered(frame: FrameType) -> bool:
    """Whether the function has been entered but has not executed anything yet."""
    return frame.f_lasti >= 0 and dis.opname[frame.f_code.co_code[frame.f_lasti]] == "RESUME"


def _getitem_of(dataset: Any) -> CodeType | None:
    for _ in range(_WRAPPED):
        method = getattr(type(dataset), "__getitem__", None)
        code = getattr(method, "__code__", None)
        if not isinstance(code, CodeType) or is_user_code(code.co_filename):
            return code if isinstance(code, CodeType) else None
        dataset = getattr(dataset, "dataset", None)  # Subset, random_split
    return None


_lines: dict[int, tuple[CodeType, int | None]] = {}  # by identity; the reference keeps the id valid


def line_of_arithmetic(code: CodeType) -> int | None:
    """Returns the line with the most arithmetic after the last call of the function, or None."""
    known = _lines.get(id(code))
    if known is None:
        known = _lines[id(code)] = (code, _find_arithmetic(code))
    return known[1]


def _find_arithmetic(code: CodeType) -> int | None:
    counts: Counter[int] = Counter()
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = _starts_line(instruction) or line
        if instruction.opname.startswith(("CALL", "JUMP_BACKWARD")):
            counts.clear()
        elif instruction.opname.startswith("BINARY") and instruction.opname != "BINARY_SUBSCR":
            counts[line] += 0 if "[" in instruction.argrepr else 1  # from Python 3.14 on a subscript is a BINARY_OP too
    values = _lines_of_values(code.co_filename)
    return next((line for line, count in counts.most_common() if count and line in values), None)


@lru_cache(maxsize=16)
def _lines_of_values(file: str) -> frozenset[int]:
    """Returns the lines of a source file that compute with values. Computing an index (`self.series[i : i +
    self.length]`) does not count."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    found: set[int] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.BinOp, ast.AugAssign)):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        waiting += [node.value] if isinstance(node, ast.Subscript) else ast.iter_child_nodes(node)
    return frozenset(found)


def _starts_line(instruction: dis.Instruction) -> int | None:
    """Returns the line that an instruction starts. Before Python 3.13 `starts_line` is the line number; since then it
    is a flag, and `line_number` is the number."""
    starts: Any = getattr(instruction, "line_number", None) or instruction.starts_line
    return starts if isinstance(starts, int) and not isinstance(starts, bool) else None
