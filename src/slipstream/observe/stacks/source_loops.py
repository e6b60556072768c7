"""Finds loops in the user's source that handle tensors one by one, either to read their values or to update parameters.
A stack sample contains only its own expression (`zip(preds, labels)`, `vhat / bias`); the loop around it shows the
purpose. A loop counts only if its source text shows what it does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from slipstream.observe.user_loops import source_tree
from slipstream.records import StackCount, Stage

_REFINED: tuple[Stage, ...] = ("other", "python", "sync", "compute", "loss")
_OVER_PARAMETERS = re.compile(r"param|state_dict|buffers|weights")
_READS = ("item", "tolist", "numpy", "cpu")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class SourceLoop(NamedTuple):
    first: int
    last: int
    stage: Stage  # "sync" or "update"


def refine(stack: StackCount) -> Stage:
    """Returns the stage of a sample of the main process, refined by the source loop around its line."""
    if stack.role != "main" or stack.phase != "other" or not stack.file or stack.stage not in _REFINED:
        return stack.stage
    around = [loop for loop in loops_in(stack.file) if loop.first <= stack.line <= loop.last]
    return max(around, key=lambda loop: loop.first).stage if around else stack.stage


@lru_cache(maxsize=64)
def loops_in(file: str) -> tuple[SourceLoop, ...]:
    """Returns the loops of one source file, or none if the file cannot be parsed."""
    tree = source_tree(file)
    return tuple(loop for node in ast.walk(tree) if (loop := _read_loop(node)) is not None) if tree is not None else ()


def _read_loop(node: ast.AST) -> SourceLoop | None:
    if isinstance(node, (ast.For, ast.AsyncFor)):
        targets, over, body = _names(node.target), ast.unparse(node.iter), list[ast.AST](node.body)
    elif isinstance(node, _COMPREHENSIONS):
        targets = {name for part in node.generators for name in _names(part.target)}
        over = " ".join(ast.unparse(part.iter) for part in node.generators)
        body = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    else:
        return None
    inside = [one for part in body for one in ast.walk(part)]
    if any("backward" in name for name in _called(inside)):
        return None  # the training loop
    stage = _stage(inside, targets, over)
    return SourceLoop(node.lineno, node.end_lineno or node.lineno, stage) if stage is not None else None


def _stage(inside: list[ast.AST], targets: set[str], over: str) -> Stage | None:
    has_gradient = any(one.attr == "grad" and _is_of(one.value, targets) for one in _attributes(inside))
    for one in _attributes(inside):
        if one.attr == "item" and _is_of(one.value, targets):
            return "sync"
        if has_gradient and one.attr in _READS and _root(one.value) in targets:
            return "sync"  # gradients that are only read
    if has_gradient:
        return "update"
    changes = any(one.attr == "data" or _is_in_place(one.attr) for one in _attributes(inside) if _root(one) in targets)
    return "update" if changes and _OVER_PARAMETERS.search(over) else None


def _attributes(inside: list[ast.AST]) -> Iterator[ast.Attribute]:
    return (one for one in inside if isinstance(one, ast.Attribute))


def _called(inside: list[ast.AST]) -> Iterator[str]:
    for one in inside:
        if isinstance(one, ast.Call):
            yield one.func.attr if isinstance(one.func, ast.Attribute) else getattr(one.func, "id", "")


def _names(target: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}


def _is_of(value: ast.expr, targets: set[str]) -> bool:
    """Whether the value is one element: the loop's own variable, or something indexed with it."""
    if isinstance(value, ast.Subscript):
        return bool(_names(value.slice) & targets)
    return isinstance(value, ast.Name) and value.id in targets


def _root(value: ast.expr) -> str:
    while isinstance(value, (ast.Attribute, ast.Call, ast.Subscript)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return value.id if isinstance(value, ast.Name) else ""


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")
