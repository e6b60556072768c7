"""Acts on modules as they are imported, so that seams arrive with torch and never before it.
Imports nothing by itself and leaves module, spec and loader as they would have been."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class ImportHooks(importlib.abc.MetaPathFinder):
    """A finder that finds nothing itself: it lets the others find, and is told when the module has run."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._running: set[str] = set()  # modules whose code runs now
        self._underway: set[str] = set()  # whose import had begun before anyone asked: nobody says when it ends

    def when_imported(self, name: str, callback: Callback) -> None:
        """Calls back with the module: at once if it is imported already, else right after its own code ran."""
        module = sys.modules.get(name)
        if module is not None and not _is_being_imported(module):
            callback(module)
            return
        self._callbacks.setdefault(name, []).append(callback)
        if module is not None:
            self._underway.add(name)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def close(self) -> None:
        self._callbacks.clear()
        self._underway.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        self._look_at_underway()
        if name not in self._callbacks or name in self._running:
            # a package that imports another of its own name and takes everything from it, as OpenCV's does: the package
            # is what arrives, and what it takes is still as it was
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._listen(spec)
                return spec
        return None

    def _look_at_underway(self) -> None:
        """A library that imports torch while it is imported itself is found complete at the next import of anything."""
        for name in list(self._underway):
            module = sys.modules.get(name)
            if module is not None and not _is_being_imported(module):
                self._underway.discard(name)
                self._call(name, module)  # and stay among the finders, through which Python is walking just now

    def _listen(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader is its plain self again before the module's first line
            self._running.add(spec.name)
            try:
                execute(module)
            finally:
                self._running.discard(spec.name)
            self._announce(spec.name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader that takes no attributes: its module stays unwatched
            return

    def _announce(self, name: str, module: ModuleType) -> None:
        self._call(name, module)
        if not self._callbacks and self in sys.meta_path:
            sys.meta_path.remove(self)

    def _call(self, name: str, module: ModuleType) -> None:
        for callback in self._callbacks.pop(name, []):
            try:
                callback(module)
            except Exception as fault:  # the script only wanted to import something
                print(f"slipstream: {name} stays unwatched: {type(fault).__name__}: {fault}", file=sys.stderr)


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
