"""Resolves the names of one file as far as its own text defines them: imports, aliases, partials. No other file is
read.
"""

from __future__ import annotations

from functools import cached_property

import libcst as cst
from libcst.helpers import get_full_name_for_node

from slipstream.rewrite.source import SourceText

SUPER = "super().__init__"


class ScopeNames:
    def __init__(self, source: SourceText) -> None:
        self._source = source

    @cached_property
    def _imports(self) -> dict[str, str]:
        """Maps a local name to the imported name. A name with two different imports maps to ""."""
        found: dict[str, str] = {}
        for node in self._source.all(cst.Import):
            for alias in node.names:
                _note(found, *_imported(alias, ""))
        for other in self._source.all(cst.ImportFrom):
            origin = get_full_name_for_node(other.module) if other.module is not None else ""
            if not isinstance(other.names, cst.ImportStar):
                for alias in other.names:
                    _note(found, *_imported(alias, origin or ""))
        return found

    @cached_property
    def _aliases(self) -> dict[str, cst.BaseExpression]:
        """Maps names with exactly one assignment in the file to their values."""
        values: dict[str, list[cst.BaseExpression]] = {}
        for node in self._source.all(cst.Assign):
            for target in node.targets:
                for name in _targets(target.target):
                    values.setdefault(name, []).append(node.value if name == _name(target.target) else cst.Ellipsis())
        return {name: found[0] for name, found in values.items() if len(found) == 1}

    def meaning(self, node: cst.BaseExpression, depth: int = 0) -> str:
        """Returns the full name, such as "torch.utils.data.DataLoader" for DL. Returns "" for anything but a dotted
        name."""
        name = get_full_name_for_node(node) if isinstance(node, cst.Name | cst.Attribute) else None
        if name is None or (isinstance(node, cst.Attribute) and not _is_dotted(node)):
            return ""
        first, dot, rest = name.partition(".")
        if first in self._imports:
            return self._imports[first] + dot + rest
        value = self._aliases.get(first)
        if value is not None and not rest and depth < 3:
            if isinstance(value, cst.Call) and self.meaning(value.func, depth + 1) in ("functools.partial", "partial"):
                value = value.args[0].value if value.args else value
            return self.meaning(value, depth + 1) or name
        return name

    def is_call_of(self, call: cst.Call, wanted: str) -> bool:
        """Whether this is a call of `wanted`, a name as the session has it: "DataLoader", "AdamW", "to"."""
        if isinstance(call.func, cst.Attribute) and not _is_dotted(call.func):
            return call.func.attr.value == wanted or (wanted == SUPER and _is_super(call.func))
        return self.meaning(call.func).rpartition(".")[2] == wanted

    def keywords_of(self, argument: cst.Arg) -> dict[str, cst.BaseExpression] | None:
        """Returns the keywords in `**arguments`, or None if the file does not show all of them. The file shows them if
        it assigns the dictionary once and uses it only in calls that unpack it."""
        name = _name(argument.value) if argument.star == "**" else ""
        value = self._aliases.get(name)
        uses = [node for node in self._source.all(cst.Name) if node.value == name]
        if value is None or not all(self._is_spread(node) for node in uses):
            return None
        if isinstance(value, cst.Dict):
            return _entries(value)
        if isinstance(value, cst.Call) and _name(value.func) == "dict":
            named = {one.keyword.value: one.value for one in value.args if one.keyword is not None}
            return named if len(named) == len(value.args) else None
        return None

    def _is_spread(self, node: cst.Name) -> bool:
        parent = next(self._source.parents(node))
        is_assigned = isinstance(parent, cst.AssignTarget)
        return is_assigned or self._is_label(node) or (isinstance(parent, cst.Arg) and parent.star == "**")

    def num_spreads(self, argument: cst.Arg) -> int:
        name = _name(argument.value)
        return sum(one.star == "**" and _name(one.value) == name for one in self._source.all(cst.Arg))

    @property
    def torch(self) -> str:
        """The file's top-level name for torch, or "" if the file does not import torch itself."""
        return self.local_name("torch")

    def imported(self, node: cst.BaseExpression) -> str:
        """Returns the full name of a dotted name. Returns "" if the first part is not imported, or if something else in
        the file binds it."""
        name = get_full_name_for_node(node) if isinstance(node, cst.Name | cst.Attribute) and _is_dotted(node) else None
        first, dot, rest = (name or "").partition(".")
        origin = "" if self.is_given(first) else self._imports.get(first, "")
        return origin + dot + rest if origin else ""

    def local_name(self, module: str) -> str:
        """Returns the file's top-level name for a module, or "" if the file does not import the module itself."""
        for statement in self._source.module.body:
            for node in getattr(statement, "body", ()) if isinstance(statement, cst.SimpleStatementLine) else ():
                for alias in node.names if isinstance(node, cst.Import) else ():
                    local, meaning = _imported(alias, "")
                    if meaning == module:
                        return local
        return ""

    def is_free(self, name: str) -> bool:
        """Whether the file uses the name only as an attribute or as the keyword of an argument, or not at all."""
        return not self.uses(name)

    def uses(self, name: str) -> list[cst.Name]:
        """Returns the uses of the name as a value, in the order of the text."""
        found = [node for node in self._source.all(cst.Name) if node.value == name]
        return [node for node in found if not self._is_label(node)]

    def _is_label(self, node: cst.Name) -> bool:
        parent = next(self._source.parents(node))
        is_attribute = isinstance(parent, cst.Attribute) and parent.attr is node
        return is_attribute or (isinstance(parent, cst.Arg) and parent.keyword is node)

    def is_given(self, name: str) -> bool:
        """Whether something other than an import binds this name in the file."""
        kinds = (cst.AssignTarget, cst.AnnAssign, cst.NamedExpr, cst.For, cst.Param, cst.FunctionDef, cst.ClassDef)
        named = [node for node in self._source.all(cst.Name) if node.value == name]
        return any(isinstance(next(self._source.parents(node)), kinds) for node in named)


def _imported(alias: cst.ImportAlias, origin: str) -> tuple[str, str]:
    """Returns the name that an import binds, and its meaning. "import torch.utils.data" binds torch."""
    name = get_full_name_for_node(alias.name) or ""
    whole = f"{origin}.{name}" if origin else name
    if alias.asname is not None:
        return get_full_name_for_node(alias.asname.name) or "", whole
    return (name, whole) if origin else (name.partition(".")[0], name.partition(".")[0])


def _note(found: dict[str, str], local: str, meaning: str) -> None:
    found[local] = meaning if found.get(local, meaning) == meaning else ""


def _entries(value: cst.Dict) -> dict[str, cst.BaseExpression] | None:
    found: dict[str, cst.BaseExpression] = {}
    for element in value.elements:
        key = element.key if isinstance(element, cst.DictElement) else None
        if not isinstance(key, cst.SimpleString) or not isinstance(key.evaluated_value, str):
            return None
        found[key.evaluated_value] = element.value
    return found


def _targets(target: cst.BaseExpression) -> list[str]:
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in _targets(element.value)]
    name = _name(target)
    return [name] if name else []


def _name(node: cst.CSTNode) -> str:
    return node.value if isinstance(node, cst.Name) else ""


def _is_dotted(node: cst.BaseExpression) -> bool:
    """Whether the expression is a.b.c, and not a().b or a[0].b."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def _is_super(func: cst.Attribute) -> bool:
    return func.attr.value == "__init__" and isinstance(func.value, cst.Call) and _name(func.value.func) == "super"
