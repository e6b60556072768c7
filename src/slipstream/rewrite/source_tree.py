"""Which file here is the one that a session saw, and whether it is the user's own to change. A session may have been
made on another machine: its paths are read from the script's folder on."""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.records import Session
from slipstream.rewrite.errors import ByHandError
from slipstream.seams.user_code import library_roots

_INSTALLED = ("site-packages", "dist-packages")


class SourceTree:
    def __init__(self, session: Session, script: Path, script_then: Path) -> None:
        """`script`: as it lies here; `script_then`: as it lay when the session was made."""
        self.script = script
        self._then = Path(os.path.normpath(session.cwd))
        here, then = Path(os.path.normpath(script.absolute())), Path(os.path.normpath(script_then))
        self._root = self._then
        if here != then and then.is_relative_to(self._then):
            self._root = Path(*here.parts[: len(here.parts) - len(then.relative_to(self._then).parts)])
        self._script_then, self._folder_then = then, then.parent
        self._repository = repository_of(here.parent)

    def file(self, name: str) -> Path:
        """Raises ByHandError for what is not to be changed."""
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
        """Of a module by its dotted name, as the script imports it. Raises ByHandError for what is not the user's."""
        if name == "__main__":
            return self.script
        for root in (self.script.absolute().parent, self._root, *([self._repository] if self._repository else [])):
            base = root.joinpath(*name.split("."))
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    self._check(path)
                    return path
        raise ByHandError(f"the module {name} does not lie in the project")

    def _check(self, path: Path) -> None:
        roots = [self.script.absolute().parent, *([self._repository] if self._repository else [])]
        # A session names its own working directory, and somebody else may have written it: only this one counts.
        if self._root.resolve() == Path.cwd().resolve():
            roots.append(self._root)
        real = os.path.realpath(path)
        if set(_INSTALLED) & set(path.parts) or real.startswith(library_roots()):
            raise ByHandError(f"{path} belongs to an installed package")
        if not any(Path(real).is_relative_to(root.resolve()) for root in roots):
            raise ByHandError(f"{path} lies outside of the project")


def repository_of(folder: Path) -> Path | None:
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)
