"""Finds hand-written attention: a matrix product, a softmax of the product, and a product with the result. Attention is
recognised by the order and the shapes of the operators. The user's line is searched in the source of the module's class
and of the modules around it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from math import prod
from types import FunctionType
from typing import Any

from slipstream.observe.anatomy.modules import ModuleEntry
from slipstream.observe.anatomy.operators import classify
from slipstream.observe.anatomy.trace import Node, OperatorTrace
from slipstream.records import Attention, Site
from slipstream.seams.user_code import is_user_code, make_site

_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::mm")
_WRAPPERS = ("aten::matmul", "aten::einsum", "aten::tensordot", "aten::inner")  # operators that call a product
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")
_PRODUCT_CALLS = ("matmul", "bmm", "baddbmm", "einsum", "mm", "dot_product")


def find_attentions(trace: OperatorTrace, entries: list[ModuleEntry], limit: int) -> list[Attention]:
    nodes = list(_forward_operators(trace))
    forward = (node for node in trace.nodes if node.module >= 0 and not node.is_backward and not node.is_optimizer)
    total_ns = sum(trace.cost_ns(node) for node in forward)
    spent_ns: dict[int, int] = {}
    for first, last in _find_spans(nodes, entries):
        module = nodes[last].module
        spent_ns[module] = spent_ns.get(module, 0) + sum(trace.cost_ns(node) for node in nodes[first : last + 1])
    found = []
    for module, spent in spent_ns.items():
        found.append(Attention(entries[module].path, find_line(module, entries), spent / total_ns if total_ns else 0.0))
    return sorted(found, key=lambda attention: -attention.share)[:limit]


def _forward_operators(trace: OperatorTrace) -> Iterator[Node]:
    """Yields the operators of the modules' forward passes in the order they ran, without the operators that fused
    kernels and linear layers call."""
    stack = list(reversed(trace.roots))
    while stack:
        node = stack.pop()
        if node.is_backward or node.is_optimizer:
            continue
        if node.module >= 0 and not node.is_range:
            yield node
        if node.name in ("aten::linear", "aten::scaled_dot_product_attention"):
            # The inner products of this node are either not attention or already fused.
            continue
        stack.extend(reversed(node.children))


def _find_spans(nodes: list[Node], entries: list[ModuleEntry]) -> Iterator[tuple[int, int]]:
    """Yields the indices of the first and the second product of each attention."""
    scores = softmax = -1
    for index, node in enumerate(nodes):
        if node.name in _SOFTMAX:
            softmax = index if scores >= 0 and _feeds(_product_shape(nodes[scores]), node.shapes[0]) else -1
        elif node.name in _PRODUCTS:
            fed = softmax >= 0 and _feeds(nodes[softmax].shapes[0], _left_shape(node))
            if fed and _are_related(nodes[scores], node, entries):
                yield scores, index
            scores, softmax = index, -1
        elif classify(node.name) == "contraction" and node.name not in _WRAPPERS:
            scores = softmax = -1


def _left_shape(node: Node) -> list[int]:
    return node.shapes[1 if node.name == "aten::baddbmm" else 0]


def _product_shape(node: Node) -> list[int]:
    right = node.shapes[2 if node.name == "aten::baddbmm" else 1]
    return [*_left_shape(node)[:-1], right[-1]]


def _feeds(made: list[int], taken: list[int]) -> bool:
    """Whether both shapes can be views of the same values."""
    return bool(made) and bool(taken) and prod(made) == prod(taken) and made[-1] == taken[-1]


def _are_related(first: Node, second: Node, entries: list[ModuleEntry]) -> bool:
    one, other = entries[first.module].path, entries[second.module].path
    return one == other or other.startswith(f"{one}.") or one.startswith(f"{other}.") or not one or not other


def find_line(index: int, entries: list[ModuleEntry]) -> Site | None:
    """Returns the line of the softmax in the module's class or in a function that the class names. If there is none,
    returns the line at which the user's code calls this module or a module around it."""
    entry = entries[index]
    for function in _list_functions(type(entry.module)):
        if is_user_code(function.__code__.co_filename) and (line := _find_softmax(function)):
            return make_site(function.__code__.co_filename, line, function.__name__)
    by_path = {other.path: other for other in entries}
    path, _, attribute = entry.path.rpartition(".")
    parent = by_path.get(path)
    while parent is not None and parent is not entry and attribute:
        for function in _list_functions(type(parent.module)):
            if is_user_code(function.__code__.co_filename) and (line := _find_call(function, attribute)):
                return make_site(function.__code__.co_filename, line, function.__name__)
        if not parent.path:
            return None
        path, _, attribute = parent.path.rpartition(".")
        parent = by_path.get(path)
    return None


def _list_functions(kind: type) -> list[FunctionType]:
    """Returns the `forward` method first, then the other methods except `__init__`, then the functions that these
    methods name."""
    forward = getattr(kind, "forward", None)
    methods = [value for name, value in vars(kind).items() if isinstance(value, FunctionType) and name != "forward"]
    found = [forward] if isinstance(forward, FunctionType) else []
    found += [method for method in methods if method.__name__ != "__init__"]
    for function in list(found):
        named = (function.__globals__.get(name) for name in function.__code__.co_names)
        found += [value for value in named if isinstance(value, FunctionType) and value not in found]
    return found


def _find_softmax(function: FunctionType) -> int | None:
    """Returns the line of the first softmax after a product, or of any softmax if the function contains no product."""
    calls = sorted(_list_calls(function))
    lines = [line for line, name in calls if "softmax" in name.lower()]
    products = [line for line, name in calls if name in _PRODUCT_CALLS]
    after = [line for line in lines if products and line >= products[0]]
    return next(iter(after or lines), None)


def _find_call(function: FunctionType, attribute: str) -> int | None:
    return next((line for line, name in sorted(_list_calls(function)) if name == attribute), None)


def _list_calls(function: FunctionType) -> Iterator[tuple[int, str]]:
    try:
        lines, start = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        line = start + getattr(node, "lineno", 1) - 1
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield line, "matmul"
        elif isinstance(node, ast.Call):
            called: Any = node.func
            yield line, called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
