"""Synthetic projects: a folder with a script, and edits at lines that are found by a piece of their text.

For tests of code that rewrites sources; runs nothing.
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
        """The line that contains this piece of text."""
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
        """The new text of the one file that changes. Every edit must have been written, and a second run must change
        nothing.
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
        """The reason why an edit was left to the user. Nothing may have been written."""
        patch = self.patch(*edits)
        assert not patch.files
        assert len(patch.left) == len(edits)
        return patch.left[0].reason


def argument(site: Site, name: str = "num_workers", text: str = "2", call: str = "DataLoader", **more: Any) -> Edit:
    return Edit("workers", "argument", site, call=call, argument=name, text=text, **more)
