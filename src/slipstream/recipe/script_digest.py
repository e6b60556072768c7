"""Digests of the script's source. They show whether the source changed since a recipe or a journal was written.

The source files are read, never imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from slipstream.launch.target import is_module
from slipstream.records import Session


def source_file(script: Sequence[str], cwd: str | Path) -> Path | None:
    """Returns the file of the script.

    Returns None for a module outside of the working directory, because its package would have to be imported to find
    the file.
    """
    if not script:
        return None
    if not is_module(script):
        path = Path(cwd) / script[0]
        return path / "__main__.py" if path.is_dir() else path
    if len(script) < 2:
        return None
    stem = Path(cwd, *script[1].split("."))
    places = (stem.with_name(stem.name + ".py"), stem / "__main__.py")
    return next((place for place in places if place.is_file()), None)


def script_digest(script: Sequence[str], cwd: str | Path) -> str:
    """Returns the digest of the script's file, or "" if the file is not found."""
    path = source_file(script, cwd)
    return _digest(path) if path is not None else ""


def files_digest(session: Session) -> str:
    """Returns the digest of the user's files in which the check saw loaders, datasets, models and optimizers."""
    sites = [site for one in session.loaders for site in (one.site, one.getitem_site, one.collate_site)]
    sites += [one.site for one in session.models]
    sites += [site for one in session.optimizers for site in (one.site, one.step_site)]
    files = {Path(session.cwd) / site.file for site in sites if site is not None}
    files |= {file for one in session.models if (file := source_file(["-m", one.class_module], session.cwd))}
    return hashlib.sha256("".join(map(_digest, sorted(files))).encode()).hexdigest()


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
