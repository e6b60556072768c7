"""Places in the user's code, named as the user would: relative to where the command was started when inside it."""

from __future__ import annotations

import posixpath

from slipstream.records import Site


def relative(file: str, cwd: str) -> str:
    """Text alone decides: a session is read on other machines too, where none of its files exist."""
    if not cwd or not file.startswith("/"):
        return file
    inside = posixpath.relpath(file, cwd)
    return file if inside.startswith("..") else inside


def where(site: Site | None, cwd: str) -> str:
    """`file:line`, or nothing for a finding that has no line."""
    return f"{relative(site.file, cwd)}:{site.line}" if site else ""
