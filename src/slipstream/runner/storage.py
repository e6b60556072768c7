"""Sessions as files: `.slipstream/sessions/<time>-<script>.msgpack` beside the user's work, kept out of their git."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from slipstream.records import SCHEMA, Session
from slipstream.runner.target import display_name

_FOLDER = ".slipstream"
_SUFFIX = ".msgpack"


class StorageError(Exception):
    """A sentence for the user."""


def save_session(session: Session, root: Path | None = None) -> Path:
    """Whole or not at all: a reader never meets half a file."""
    try:
        return _save(session, root)
    except OSError as error:
        raise StorageError(f"The session could not be saved in {root or Path.cwd()}: {error.strerror}.") from None


def _save(session: Session, root: Path | None) -> Path:
    folder = _make_folder(root or Path.cwd()) / "sessions"
    folder.mkdir(exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "-", Path(display_name(session.script)).stem) if session.script else "watch"
    moment = re.sub(r"[^0-9T]", "", session.created.partition("+")[0].partition(".")[0])
    path = folder / f"{moment}-{stem}{_SUFFIX}"
    number = 2
    while path.exists():
        path = folder / f"{moment}-{stem}-{number}{_SUFFIX}"
        number += 1
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(msgspec.msgpack.encode(session))
    partial.replace(path)
    return path


def load_session(path: Path) -> Session:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"The session {str(path)!r} cannot be read: {error.strerror}.") from None
    try:
        return msgspec.msgpack.decode(data, type=Session)
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"{str(path)!r} is not a session that this version reads (it reads schema {SCHEMA}): {error}."
        ) from None


def latest(root: Path | None = None) -> Path | None:
    """The session saved last."""
    return next(iter(newest_first(root)), None)


def newest_first(root: Path | None = None) -> list[Path]:
    """Every session saved here."""
    folder = (root or Path.cwd()) / _FOLDER / "sessions"
    return sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def _make_folder(root: Path) -> Path:
    folder = root / _FOLDER
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return folder
