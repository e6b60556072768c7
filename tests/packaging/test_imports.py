"""Every third-party module that the source imports comes from a declared dependency, or its absence is handled."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from installation import ROOT, requirements_of
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SOURCE = ROOT / "src" / "slipstream"

# Pillow is not a dependency. Techniques for images act only where the script has imported it, the speed test reports
# that it is missing, and the demo and selftest look for it first.
IMPORTS_PILLOW = re.compile(r"data/[\w/]+|machine/speedtest/decode|testing/(jpegs|photographs|trainings)")


def undeclared_imports(folder: Path, declared: set[str]) -> list[str]:
    """As `file:line module`. Scripts of the zoo are users' scripts and import what they like."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name.startswith("testing/zoo/"):
            continue
        for line, module in _unguarded_imports(ast.parse(path.read_bytes())):
            if module in declared or (module == "PIL" and IMPORTS_PILLOW.fullmatch(name)):
                continue
            found.append(f"{name}.py:{line} {module}")
    return found


def _unguarded_imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Top-level names of third-party modules, also those that functions import, outside `try` and TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.level == 0:
            names = [child.module or ""]
        for name in names:
            module = name.partition(".")[0]
            if module not in sys.stdlib_module_names and module != "slipstream":
                yield child.lineno, module
        yield from _unguarded_imports(_without_guarded(child))


def _without_guarded(node: ast.AST) -> ast.AST:
    """The parts of a statement that must not import a missing module."""
    if isinstance(node, ast.Try) and any(_catches_import_error(handler) for handler in node.handlers):
        return ast.Module([*node.orelse, *node.finalbody], [])
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return ast.Module(node.orelse, [])
    return node


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    words = ast.unparse(handler.type) if handler.type is not None else "BaseException"
    return any(name in words for name in ("ImportError", "ModuleNotFoundError", "Exception"))


def modules_of(requirements: list[str]) -> set[str]:
    """The top-level modules of the required distributions, without those of extras."""
    required = {line for line in requirements if "extra ==" not in line}
    names = {canonicalize_name(Requirement(line).name) for line in required}
    provided = {
        module
        for module, distributions in metadata.packages_distributions().items()
        if names & {canonicalize_name(name) for name in distributions}
    }
    return provided | names  # a requirement for other versions of Python is not installed: tomli


def test_imports_are_declared(wheel: Path) -> None:
    assert undeclared_imports(SOURCE, modules_of(requirements_of(wheel))) == []


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("import numpy as np", True),
        ("def f():\n    from numpy import random", True),
        ("try:\n    import numpy\nexcept ImportError:\n    numpy = None", False),
        ("try:\n    import numpy\nfinally:\n    pass", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy", False),
        ("import os.path\nfrom slipstream import records\nfrom . import numpy", False),
    ],
)
def test_an_undeclared_import_is_found(tmp_path: Path, source: str, is_found: bool) -> None:
    (tmp_path / "module.py").write_text(source)
    assert bool(undeclared_imports(tmp_path, {"torch"})) == is_found
