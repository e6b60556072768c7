"""Sessions as files: `.slipstream/sessions/<time>-<script>.msgpack` beside the user's work, kept out of their git. The
file comes first and whole; the index learns of it afterwards, and can be made again from the files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import psutil

from slipstream.records import SCHEMA, Session, SpeedTest
from slipstream.runner.index import SUFFIX, remember
from slipstream.runner.target import file_stem

FOLDER = ".slipstream"
_SPEEDTEST = "machine.msgpack"


class StorageError(Exception):
    """A sentence for the user."""


def save_session(session: Session, root: Path | None = None) -> Path:
    """Whole or not at all: a reader never meets half a file."""
    try:
        return _save(session, root)
    except OSError as error:
        raise StorageError(f"The session could not be saved in {root or Path.cwd()}: {error.strerror}.") from None


def _save(session: Session, root: Path | None) -> Path:
    folder = make_folder(root or Path.cwd()) / "sessions"
    folder.mkdir(exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "-", file_stem(session.script)) if session.script else "watch"
    moment = re.sub(r"[^0-9T]", "", session.created.partition("+")[0].partition(".")[0])
    path = folder / f"{moment}-{stem}{SUFFIX}"
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        partial.write_bytes(msgspec.msgpack.encode(session))
        number = 2
        while not _take_name(partial, path):
            path = folder / f"{moment}-{stem}-{number}{SUFFIX}"
            number += 1
    finally:
        partial.unlink(missing_ok=True)
    _sweep(folder)
    remember(path)
    return path


def _sweep(folder: Path) -> None:
    """What processes that were killed while they saved have left."""
    for path in folder.glob("*.partial"):
        owner = path.name.split(".")[-2]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            path.unlink(missing_ok=True)


def _take_name(partial: Path, path: Path) -> bool:
    """False: a session is called so already. A link cannot replace one that another process saves meanwhile."""
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if path.exists():
            return False
        partial.replace(path)
    return True


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
    folder = (root or Path.cwd()) / FOLDER / "sessions"
    return sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def save_speedtest(test: SpeedTest, root: Path | None = None) -> Path:
    """The last one of a directory takes the place of the one before it."""
    root = root or Path.cwd()
    try:
        path = make_folder(root) / _SPEEDTEST
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_bytes(msgspec.msgpack.encode(test))
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"The speed test could not be saved in {root}: {error.strerror}.") from None
    return path


def load_speedtest(root: Path | None = None) -> SpeedTest:
    path = (root or Path.cwd()) / FOLDER / _SPEEDTEST
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=SpeedTest)
    except FileNotFoundError:
        raise StorageError(f"No speed test is saved in {path.parent}. Make one: slipstream machine") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise StorageError(
            f"{str(path)!r} cannot be read: {error}. A new one replaces it: slipstream machine"
        ) from None


def known_speedtest(root: Path | None = None) -> SpeedTest | None:
    """None: there is none, or none that can be read."""
    try:
        return load_speedtest(root)
    except StorageError:
        return None


def make_folder(root: Path) -> Path:
    folder = root / FOLDER
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return folder
