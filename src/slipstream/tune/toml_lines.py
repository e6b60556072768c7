"""On which line of a TOML text a key stands: parsers keep that to themselves. Good enough for the files that slipstream
writes and people edit; a key that is not found has no line, never a wrong one."""

from __future__ import annotations

import re

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*[=.]""")


class TomlLines:
    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, str], int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), start=1):
            header = _TABLE.match(line)
            if header:
                table = header[1].strip("\"'")
                self._lines.setdefault(("", table), number)
                continue
            key = _KEY.match(line)
            if key:
                self._lines.setdefault((table, key[1] or key[2] or key[3]), number)

    def line_of(self, table: str, key: str) -> int | None:
        """`table` is "" for keys before the first one, and for the tables themselves."""
        return self._lines.get((table, key))
