"""Runs callbacks when a module has been imported, so that seams are installed after torch was imported and never
before. Imports nothing itself, and leaves the module, its spec and its loader unchanged."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class ImportHooks(importlib.abc.MetaPathFinder):
    """A finder that delegates to the other finders and is notified when a module has been executed."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._running: set[str] = set()  # modules that are being executed now
        # Modules whose import began before a callback was registered: Python does not report when it ends
        self._underway: set[str] = set()

    def when_imported(self, name: str, callback: Callback) -> None:
        """Calls `callback` with the module: immediately if it is already imported, else right after it has been
        executed."""
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
            # A package that imports another module of its own name and takes everything from it, as OpenCV's does: the
            # callback must get the package, and the inner module stays unchanged.
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
        """Calls the callbacks of modules whose import was under way and has now ended. The check takes place at the
        next import of any module. Example: a library that imports torch while it is being imported itself."""
        for name in list(self._underway):
            module = sys.modules.get(name)
            if module is not None and not _is_being_imported(module):
                self._underway.discard(name)
                self._call(name, module)  # this finder stays in sys.meta_path, which Python is iterating over

    def _listen(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader is unchanged again before the module's first line
            self._running.add(spec.name)
            try:
                execute(module)
            finally:
                self._running.discard(spec.name)
            self._announce(spec.name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader without a __dict__: its module gets no callback
            return

    def _announce(self, name: str, module: ModuleType) -> None:
        self._call(name, module)
        if not self._callbacks and self in sys.meta_path:
            sys.meta_path.remove(self)

    def _call(self, name: str, module: ModuleType) -> None:
        for callback in self._callbacks.pop(name, []):
            try:
                callback(module)
            except Exception as fault:  # a fault of ours must not break the script's import
                print(f"slipstream: {name} is not observed: {type(fault).__name__}: {fault}", file=sys.stderr)


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
