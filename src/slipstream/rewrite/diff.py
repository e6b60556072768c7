"""Formats a patch as a unified diff, which `git apply` and `patch -p1` accept. The diff keeps the encoding of each
file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from slipstream.rewrite.make_patch import ChangedFile
from slipstream.rewrite.source_tree import repository_of

_NO_NEWLINE = "\\ No newline at end of file\n"


def unified(files: Sequence[ChangedFile], root: Path) -> bytes:
    """Returns the diff. Its paths are relative to `root`, the folder in which the patch is applied."""
    return b"".join(_of_file(file, _relative(file.path, root)) for file in files)


def root_of(files: Sequence[ChangedFile], script: Path, here: Path) -> Path:
    """Returns the folder for `git apply`: the first folder that contains all files. The candidates are `here`, the
    script's folder, the script's repository and the files' common folder, in this order.
    """
    folder = script.absolute().parent
    paths = [file.path.absolute() for file in files]
    candidates = [here, folder, *([repository] if (repository := repository_of(folder)) else [])]
    for root in candidates:
        if all(path.is_relative_to(root) for path in paths):
            return root
    return Path(os.path.commonpath([path.parent for path in paths]))


def _relative(path: Path, root: Path) -> str:
    return path.absolute().relative_to(root).as_posix()


def _of_file(file: ChangedFile, name: str) -> bytes:
    # Latin-1 maps every byte to a character, so no byte is lost.
    before, after = (_lines(raw.decode("latin-1")) for raw in (file.before, file.after))
    shown = name.encode().decode("latin-1")
    lines = difflib.unified_diff(before, after, f"a/{shown}", f"b/{shown}")
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines).encode("latin-1")


def _lines(text: str) -> list[str]:
    """Splits the text at line feeds only, as diff does."""
    return [line + "\n" for line in text.split("\n")[:-1]] + ([last] if (last := text.rpartition("\n")[2]) else [])
