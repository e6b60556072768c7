"""Reads from the user's source what depends on a statement, so that no advice removes what another line needs. A name
that the statement sets counts as needed if the function around the statement reads the name anywhere or shares the name
with other functions. Objects that the statement may change count as needed too."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator

from slipstream.observe.user_loops import source_tree
from slipstream.records import Site, Statement

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
# Methods that change their object. If a call of one is left out, later lines find another value in the object.
_CHANGES = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "clear", "remove", "put", "step"}
_TRAINS = {"backward", "manual_backward", "step", "zero_grad", "requires_grad_", "enable_grad", "set_grad_enabled"}
_PLAIN_DECORATORS = {"staticmethod", "classmethod"}


def read_statement(site: Site) -> Statement | None:
    """Returns what the source says about the line, or None if the file cannot be read or has no statement there."""
    tree = source_tree(site.file)
    path = _path(tree, site.line) if tree is not None else []
    if tree is None or not path:
        return None
    statement = path[-1]
    scope = max((at for at, node in enumerate(path) if isinstance(node, _FUNCTIONS)), default=-1)
    function = path[scope] if scope >= 0 else None
    loops = [node for node in path[scope + 1 : -1] if isinstance(node, _LOOPS)]
    around = path[path.index(loops[-1]) + 1 :] if loops else path[scope + 1 :]
    return Statement(
        file=site.file,
        line=site.line,
        is_whole=_is_simple(linecache.getline(site.file, site.line)),
        needed=sorted(_needed(statement, function or tree)),
        counter=_counter(loops[-1]) if loops else "",
        guard=next((ast.unparse(node.test) for node in around if isinstance(node, ast.If) and _is_rare(node)), ""),
        changing=sorted({name for loop in loops for name in _set(loop) | _changed(loop)}),
        is_in_loop=bool(loops),
        function=function.name if isinstance(function, _FUNCTIONS) else "",
        only_evaluates=isinstance(function, _FUNCTIONS) and _only_evaluates(function, tree),
    )


def _path(tree: ast.Module, line: int) -> list[ast.stmt]:
    """Returns the statements that contain the line, outermost first."""
    found: list[ast.stmt] = []
    inner: ast.stmt | None = _holding(tree, line)
    while inner is not None:
        found.append(inner)
        inner = _holding(inner, line)
    return found


def _holding(node: ast.AST, line: int) -> ast.stmt | None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            if child.lineno <= line <= (child.end_lineno or child.lineno):
                return child
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)) and (found := _holding(child, line)) is not None:
            return found
    return None


def _is_simple(line: str) -> bool:
    """Whether the line is one statement without a header. A part of a longer statement cannot be parsed."""
    try:
        body = ast.parse(line.strip()).body
    except (SyntaxError, ValueError):
        return False
    return len(body) == 1 and isinstance(body[0], _SIMPLE)


def _needed(statement: ast.stmt, scope: ast.AST) -> set[str]:
    read = {node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    shared = {name for node in ast.walk(scope) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    own = (
        {statement.target.id}
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)
        else set()
    )
    return (_set(statement) & (read | shared | own)) | _changed(statement)


def _set(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _changed(node: ast.AST) -> set[str]:
    """Returns the source text of the objects that the code may change. Assignments to a part of an object and names of
    called methods show a change."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, (ast.Attribute, ast.Subscript)) and isinstance(one.ctx, ast.Store):
            found.add(ast.unparse(one.value if isinstance(one, ast.Subscript) else one))
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and _changes(one.func.attr):
            found.add(ast.unparse(one.func.value))
    return found


def _changes(method: str) -> bool:
    return method in _CHANGES | _TRAINS or (method.endswith("_") and not method.startswith("_"))


def _counter(loop: ast.stmt) -> str:
    """Returns the variable that counts the iterations: of `enumerate`, of `range`, or one that the loop increments."""
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        counts = {_callee(call) for call in ast.walk(loop.iter) if isinstance(call, ast.Call)}
        target = loop.target
        if "enumerate" in counts and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
            return target.elts[0].id
        if counts & {"range", "trange"} and isinstance(target, ast.Name):
            return target.id
    for one in getattr(loop, "body", []):
        is_sum = isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add) and isinstance(one.target, ast.Name)
        if is_sum and isinstance(one.value, ast.Constant) and one.value.value == 1:
            return str(one.target.id)
    return ""


def _callee(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _is_rare(condition: ast.If) -> bool:
    return any(isinstance(node, ast.Mod) for node in ast.walk(condition.test))


def _only_evaluates(function: _Function, tree: ast.Module) -> bool:
    is_generator = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function))
    others = {ast.unparse(decorator) for decorator in function.decorator_list} - _PLAIN_DECORATORS
    if isinstance(function, ast.AsyncFunctionDef) or is_generator or others or function.name == "forward":
        return False
    calls = {_callee(node) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return "eval" in calls and not any(_trains(one) for one in _called(function, tree))


def _called(function: _Function, tree: ast.Module) -> Iterator[_Function]:
    """Yields the function and all functions of the file that it may call, by their names."""
    known: dict[str, list[_Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            known.setdefault(node.name, []).append(node)
    seen, waiting = {function.name}, [function]
    while waiting:
        current = waiting.pop()
        yield current
        for node in ast.walk(current):
            name = _callee(node) if isinstance(node, ast.Call) else ""
            if name in known and name not in seen:
                seen.add(name)
                waiting += known[name]


def _trains(function: _Function) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in _TRAINS for node in ast.walk(function))
