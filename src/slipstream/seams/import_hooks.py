"""Runs callbacks when a module has been imported, so seams are installed right after the script imports torch. The
hooks import nothing themselves, and leave the module and its spec unchanged. The loader is changed only until the
module is executed."""

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
        self._running: set[str] = set()  # Modules that are being executed now
        # Modules whose import began before a callback was registered. Python does not report the end of their import.
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
            # While a package is executed, it may import another module of its own name, as OpenCV's package does. The
            # callback must get the package, so the inner module is ignored.
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
        """Calls the callbacks of modules whose import began before the callback was registered and has now ended. This
        check takes place at the next import of any module."""
        for name in list(self._underway):
            module = sys.modules.get(name)
            if module is not None and not _is_being_imported(module):
                self._underway.discard(name)
                self._call(name, module)  # This finder is not removed here, because Python iterates over sys.meta_path.

    def _listen(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # From here on the loader is unchanged again.
            self._running.add(spec.name)
            try:
                execute(module)
            finally:
                self._running.discard(spec.name)
            self._announce(spec.name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # The loader has no __dict__. Callbacks for its module are not called.
            return

    def _announce(self, name: str, module: ModuleType) -> None:
        self._call(name, module)
        if not self._callbacks and self in sys.meta_path:
            sys.meta_path.remove(self)

    def _call(self, name: str, module: ModuleType) -> None:
        for callback in self._callbacks.pop(name, []):
            try:
                callback(module)
            except Exception as fault:  # A fault of this package must not break the script's import.
                print(f"slipstream: {name} is not observed: {type(fault).__name__}: {fault}", file=sys.stderr)


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
