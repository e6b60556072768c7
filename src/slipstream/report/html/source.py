"""Lines of the user's source around a location, read again if the file still has the line that was measured."""

from __future__ import annotations

import tokenize
from collections.abc import Callable
from pathlib import Path

import msgspec

from slipstream.records import Site

AROUND = 3
MOST_BYTES = 2_000_000

Reader = Callable[[str], str | None]  # maps a file name to its text, or None


class SourceLine(msgspec.Struct, frozen=True):
    number: int
    text: str
    is_meant: bool


def read_source(file: str) -> str | None:
    """Reads Python files only. A session may come from anyone, and must not be able to show other files."""
    path = Path(file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        with tokenize.open(file) as opened:
            return opened.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return None


def excerpt(site: Site, read: Reader) -> list[SourceLine]:
    """Empty if the file is gone, or its line has changed."""
    source = read(site.file)
    lines = source.splitlines() if source is not None else []
    if not 1 <= site.line <= len(lines) or not site.text or _squeezed(site.text) not in _squeezed(lines[site.line - 1]):
        return []
    first, last = max(1, site.line - AROUND), min(len(lines), site.line + AROUND)
    return [SourceLine(number, lines[number - 1].rstrip(), number == site.line) for number in range(first, last + 1)]


def _squeezed(text: str) -> str:
    """The text without white space, because a site stores its line, or the expression on it, without surrounding
    blanks.
    """
    return " ".join(text.split())
