"""Source locations, relative to the working directory of the command if they are inside it."""

from __future__ import annotations

import posixpath

from slipstream.records import Site


def relative(file: str, cwd: str) -> str:
    """Returns the path relative to `cwd` if the file is below `cwd`. Only the text of the paths is used, because a
    session is also read on machines where its files do not exist.
    """
    if not cwd or not file.startswith("/"):
        return file
    inside = posixpath.relpath(file, cwd)
    return file if inside.startswith("..") else inside


def where(site: Site | None, cwd: str) -> str:
    """Returns `file:line`, or "" without a site."""
    return f"{relative(site.file, cwd)}:{site.line}" if site else ""
