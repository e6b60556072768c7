"""Saves and loads sessions as files `.slipstream/sessions/<time>-<script>.msgpack` in the user's working directory. The
user's git ignores these files. The index is updated after a file is saved, and can be rebuilt from the files."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

import msgspec

from slipstream.launch.target import file_stem
from slipstream.records import SCHEMA, Session, SpeedTest
from slipstream.store.decoding import DamagedFileError, decode_msgpack
from slipstream.store.index import LIMIT_BYTES, SUFFIX, remember
from slipstream.store.older_sessions import decode_session
from slipstream.store.safe_files import is_regular_file, open_directory, publish_file, read_file, write_file

FOLDER = ".slipstream"
_SPEEDTEST = "machine.msgpack"
_ABANDONED_S = 3600.0  # a session is written within seconds, even to a network drive


class StorageError(Exception):
    """A session or speed test could not be saved, found or read. The message is a sentence for the user."""


def save_session(session: Session, root: Path | None = None) -> Path:
    """Saves the session and returns its path. The file gets its name when it is complete, so no process reads an
    incomplete session."""
    try:
        return _save(session, root)
    except OSError as error:
        raise StorageError(f"The session could not be saved: {_words(error, root)}.") from None


def _save(session: Session, root: Path | None) -> Path:
    folder = open_directory(make_folder(root or Path.cwd()) / "sessions")
    stem = re.sub(r"[^\w.-]+", "-", file_stem(session.script)) if session.script else "watch"
    moment = re.sub(r"[^0-9T]", "", session.created.partition("+")[0].partition(".")[0])
    path = folder / f"{moment}-{stem}{SUFFIX}"

    def take_free_name(partial: Path) -> None:
        nonlocal path
        number = 2
        while not _take_name(partial, path):
            path = folder / f"{moment}-{stem}-{number}{SUFFIX}"
            number += 1

    publish_file(path, msgspec.msgpack.encode(session), take_free_name)
    _sweep(folder)
    remember(path)
    return path


def _sweep(folder: Path) -> None:
    """Removes the partial files of processes that were killed while they saved. They are recognised by their age. The
    process id in their name is not used, because the process may run in another container."""
    for path in folder.glob("*.partial"):
        with contextlib.suppress(OSError):  # another process has just published or removed the file
            if time.time() - path.lstat().st_mtime > _ABANDONED_S:
                path.unlink()


def _take_name(partial: Path, path: Path) -> bool:
    """Gives the file its final name. Returns False if a session with this name exists. A hard link is used, because it
    cannot replace a session that another process saves at the same time."""
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.lexists(path):
            return False
        partial.replace(path)
    return True


def load_session(path: Path) -> Session:
    try:
        data = read_file(path, LIMIT_BYTES, may_be_link=True)
    except OSError as error:
        raise StorageError(f"The session {str(path)!r} cannot be read: {error.strerror}.") from None
    try:
        return decode_session(data)
    except DamagedFileError as error:
        raise StorageError(
            f"{str(path)!r} is not a session that this version reads (it reads schema {SCHEMA}): {error}."
        ) from None


def latest(root: Path | None = None) -> Path | None:
    """Returns the session that was saved last, or None."""
    return next(iter(newest_first(root)), None)


def newest_first(root: Path | None = None) -> list[Path]:
    """Returns every session that is saved here. Links, pipes and directories with such a name are ignored."""
    folder = (root or Path.cwd()) / FOLDER / "sessions"
    saved = [path for path in folder.glob(f"*{SUFFIX}") if is_regular_file(path)]
    return sorted(saved, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def save_speedtest(test: SpeedTest, root: Path | None = None) -> Path:
    """Saves the speed test of a directory and returns its path. An earlier speed test is replaced."""
    root = root or Path.cwd()
    try:
        path = make_folder(root) / _SPEEDTEST
        write_file(path, msgspec.msgpack.encode(test))
    except OSError as error:
        raise StorageError(f"The speed test could not be saved: {_words(error, root)}.") from None
    return path


def load_speedtest(root: Path | None = None) -> SpeedTest:
    path = (root or Path.cwd()) / FOLDER / _SPEEDTEST
    try:
        return decode_msgpack(read_file(path, LIMIT_BYTES), SpeedTest)
    except FileNotFoundError:
        raise StorageError(f"No speed test is saved in {path.parent}. Make one: slipstream machine") from None
    except (OSError, DamagedFileError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(
            f"{str(path)!r} cannot be read: {reason}. Replace it with a new one: slipstream machine"
        ) from None


def known_speedtest(root: Path | None = None) -> SpeedTest | None:
    """Returns the saved speed test, or None if there is none or it cannot be read."""
    try:
        return load_speedtest(root)
    except StorageError:
        return None


def make_folder(root: Path) -> Path:
    folder = open_directory(root / FOLDER)
    ignore = folder / ".gitignore"
    if not os.path.lexists(ignore):
        write_file(ignore, b"*\n")
    return folder


def _words(error: OSError, root: Path | None) -> str:
    return f"{error.filename or root or Path.cwd()}: {error.strerror}"
