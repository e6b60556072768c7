"""Source locations, relative to the working directory of the command if they are inside it."""

from __future__ import annotations

import posixpath

from slipstream.records import Site


def relative(file: str, cwd: str) -> str:
    """Uses only the text of the paths, because a session is also read on other machines, where its files do not
    exist.
    """
    if not cwd or not file.startswith("/"):
        return file
    inside = posixpath.relpath(file, cwd)
    return file if inside.startswith("..") else inside


def where(site: Site | None, cwd: str) -> str:
    """`file:line`, or "" for a finding without a line."""
    return f"{relative(site.file, cwd)}:{site.line}" if site else ""
