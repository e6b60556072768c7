"""Finds the local file that a session refers to, and decides whether it belongs to the user and may be changed.

A session may come from another machine, so paths below its working directory or the script's folder are mapped to local
folders.
"""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.records import Session
from slipstream.rewrite.errors import ByHandError
from slipstream.seams.user_code import library_roots

_INSTALLED = ("site-packages", "dist-packages")


class SourceTree:
    def __init__(self, session: Session, script: Path, script_then: Path) -> None:
        """`script` is the local path. `script_then` is the path at the time of the session."""
        self.script = script
        self._then = Path(os.path.normpath(session.cwd))
        here, then = Path(os.path.normpath(script.absolute())), Path(os.path.normpath(script_then))
        self._root = self._then
        if here != then and then.is_relative_to(self._then):
            self._root = Path(*here.parts[: len(here.parts) - len(then.relative_to(self._then).parts)])
        self._script_then, self._folder_then = then, then.parent
        self._repository = repository_of(here.parent)

    def file(self, name: str) -> Path:
        """Returns the local path of a file. Raises ByHandError for a file that must not be changed."""
        if name.startswith("<"):
            raise ByHandError(f"the code has no file ({name})")
        path = Path(os.path.normpath(name))
        if path == self._script_then:
            return self.script
        if path.is_relative_to(self._then):
            path = self._root / path.relative_to(self._then)
        elif path.is_relative_to(self._folder_then):
            path = self.script.absolute().parent / path.relative_to(self._folder_then)
        self._check(path)
        return path

    def module(self, name: str) -> Path:
        """Returns the file of a module with this dotted name. Raises ByHandError if there is no file or the file must
        not be changed."""
        if name == "__main__":
            return self.script
        for root in (self.script.absolute().parent, self._root, *([self._repository] if self._repository else [])):
            base = root.joinpath(*name.split("."))
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    self._check(path)
                    return path
        raise ByHandError(f"the module {name} is not in the project")

    def _check(self, path: Path) -> None:
        roots = [self.script.absolute().parent, *([self._repository] if self._repository else [])]
        # The session's working directory is trusted only if it is the current directory, because another person may
        # have written the session.
        if self._root.resolve() == Path.cwd().resolve():
            roots.append(self._root)
        real = os.path.realpath(path)
        if set(_INSTALLED) & set(path.parts) or real.startswith(library_roots()):
            raise ByHandError(f"{path} belongs to an installed package")
        if not any(Path(real).is_relative_to(root.resolve()) for root in roots):
            raise ByHandError(f"{path} is outside of the project")


def repository_of(folder: Path) -> Path | None:
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)
