"""A place in the user's own code."""

from __future__ import annotations

import msgspec


class Site(msgspec.Struct, frozen=True):
    file: str  # absolute path, or a name such as "<string>" for code without a file
    line: int
    text: str = ""  # the source line, stripped
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"
