"""Synthetic projects for tests of code that rewrites sources. A project is a folder with a script. Edits name a line by
a piece of its text. Nothing is run.
"""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path
from typing import Any

import msgspec

from slipstream.records import Edit, Site
from slipstream.rewrite.make_patch import Patch, make_patch
from slipstream.rewrite.source_tree import SourceTree
from slipstream.testing.made_sessions import made_session


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, source: str | bytes, name: str = "train.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.encode() if isinstance(source, str) else source)
        return path

    def site(self, piece: str, name: str = "train.py", function: str = "main") -> Site:
        """Returns the site of the line that contains this piece of text. Exactly one line must contain it."""
        path = self.folder / name
        with tokenize.open(path) as file:
            lines = file.read().split("\n")
        (number,) = [number for number, line in enumerate(lines, 1) if piece in line]
        return Site(str(path), number, lines[number - 1].strip(), function)

    def patch(self, *edits: Edit) -> Patch:
        script = self.folder / "train.py"
        session = msgspec.structs.replace(made_session(), cwd=str(self.folder))
        patch = make_patch(edits, SourceTree(session, script, script))
        for file in patch.files:
            ast.parse(file.after)
        return patch

    def text(self, *edits: Edit) -> str:
        """Returns the new text of the one file that changes.

        Raises AssertionError if an edit is left to the user, or if a second run changes something.
        """
        patch = self.patch(*edits)
        assert not patch.left, patch.left
        (file,) = patch.files
        before = file.path.read_bytes()
        file.path.write_bytes(file.after)
        again = self.patch(*edits)
        file.path.write_bytes(before)
        assert not again.files and not again.left, again
        return file.after.decode()

    def why_left(self, *edits: Edit) -> str:
        """Returns the reason why the first edit is left to the user. Raises AssertionError if an edit is written."""
        patch = self.patch(*edits)
        assert not patch.files
        assert len(patch.left) == len(edits)
        return patch.left[0].reason


def argument(site: Site, name: str = "num_workers", text: str = "2", call: str = "DataLoader", **more: Any) -> Edit:
    return Edit("workers", "argument", site, call=call, argument=name, text=text, **more)
