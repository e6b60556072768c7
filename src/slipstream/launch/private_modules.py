"""Hides the modules that slipstream imported from the script. An `import click` in the script then finds the user's own
`click.py`, as under plain Python. Modules of slipstream keep their references to the hidden modules. Modules of
slipstream that are imported later find the hidden modules again."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Final

from slipstream.startup_modules import STARTUP_MODULES

# Only packages of which a process can hold two copies, in case the script imports the same package. NumPy is not one of
# them.
_OURS: Final = frozenset({"click", "msgspec", "typing_extensions"})
_SHARED: Final = frozenset({"slipstream", "torch", "numpy"})


def hide_our_modules(folder: str | None) -> None:
    """Removes from `sys.modules` the packages that only slipstream uses. Also removes modules, for example of the
    standard library, if `folder` has a module of the same name. `folder` is the script's own folder."""
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _OwnImports)), None) or _OwnImports()
    finder.hidden.update(_hidden(folder))
    for name in finder.hidden:
        sys.modules.pop(name, None)
    if finder.hidden and finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)


def _hidden(folder: str | None) -> dict[str, ModuleType]:
    tops = {name.partition(".")[0] for name in sys.modules} - _SHARED - STARTUP_MODULES
    replaced = {top for top in tops if folder is not None and _is_in(top, folder)}
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in replaced | (_OURS & tops)}


def _is_in(name: str, folder: str) -> bool:
    """Whether python would import the module from this folder, if the folder is first in `sys.path`."""
    if name in sys.builtin_module_names:
        return False
    spec = importlib.machinery.PathFinder.find_spec(name, [folder])
    return spec is not None and spec.loader is not None  # without a loader it is only a directory


class _OwnImports(importlib.abc.MetaPathFinder):
    """Shows the hidden modules while a module of slipstream is imported."""

    def __init__(self) -> None:
        self.hidden: dict[str, ModuleType] = {}
        self._depth = 0

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("slipstream."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                with self._shown():
                    execute(module)

            loader.exec_module = exec_module
        return spec

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        self._depth += 1
        of_script = {name: sys.modules[name] for name in self.hidden if name in sys.modules} if self._depth == 1 else {}
        sys.modules.update(self.hidden)
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                for name in self.hidden:
                    sys.modules.pop(name, None)
                sys.modules.update(of_script)
