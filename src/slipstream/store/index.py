"""The index of saved sessions, in SQLite, with a row for each session that `history` lists. A row is a copy of a few
fields of the session file. Rows that are missing or out of date are read again from the files. A broken index is
deleted and rebuilt. A session file is never deleted.

The index is in the user's cache and not in the project. A project may be a clone of another person's, and SQLite must
not open files of another person: it would run their triggers, and delete any file that a planted journal names."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from slipstream.records import IndexEntry, SessionGlance
from slipstream.store.cache_folder import cache_folder, make_private_folder
from slipstream.store.decoding import DamagedFileError, decode_msgpack
from slipstream.store.safe_files import UnsafeFileError, check_directory, is_regular_file, read_file

SUFFIX: Final = ".msgpack"
LIMIT_BYTES: Final = 1 << 30  # maximum size of a session; an hour of steps takes a few megabytes
_LARGEST: Final = (1 << 63) - 1  # the largest integer that SQLite stores
_TIMEOUT_S: Final = 20.0  # how long to wait for another process that writes
_COLUMNS: Final = IndexEntry.__struct_fields__
T = TypeVar("T")

# One script for each version of the schema, starting from the empty database. A script that adds a column also empties
# the table if the session files have the value. The rows are then read again from the files.
MIGRATIONS: Final = (
    """
    CREATE TABLE sessions (
        name TEXT PRIMARY KEY, size_bytes INTEGER NOT NULL, modified_ns INTEGER NOT NULL, is_readable INTEGER NOT NULL,
        created TEXT NOT NULL, command TEXT NOT NULL, script TEXT NOT NULL, "commit" TEXT NOT NULL,
        is_changed INTEGER NOT NULL, num_steps INTEGER NOT NULL, step_ms REAL, samples_per_s REAL, bound TEXT NOT NULL,
        recipe TEXT NOT NULL, ratio REAL, ratio_low REAL, ratio_high REAL
    ) WITHOUT ROWID;
    CREATE INDEX newest ON sessions (modified_ns DESC, name DESC);
    """,
    """
    ALTER TABLE sessions ADD COLUMN peak_bytes INTEGER;
    ALTER TABLE sessions ADD COLUMN largest_batch INTEGER;
    DELETE FROM sessions;
    """,
    """
    ALTER TABLE sessions ADD COLUMN num_undisturbed INTEGER;
    DELETE FROM sessions;
    """,
)


class NewerIndexError(Exception):
    """A newer version of slipstream wrote the index. This version must not change the index."""


def entries(folder: Path, limit: int | None = None, script: str = "") -> list[IndexEntry]:
    """Returns the sessions in `folder`/sessions, newest first. With `script`, only those whose command line contains
    this text."""

    def read(connection: sqlite3.Connection) -> list[IndexEntry]:
        _catch_up(connection, folder / "sessions")
        names = ", ".join(f'"{column}"' for column in _COLUMNS)
        wanted = "WHERE instr(lower(script), ?) " if script else ""
        rows = connection.execute(
            f"SELECT {names} FROM sessions {wanted}ORDER BY modified_ns DESC, name DESC LIMIT ?",
            (*([script.lower()] if script else []), -1 if limit is None else limit),
        )
        try:
            return [msgspec.convert(dict(zip(_COLUMNS, row, strict=True)), IndexEntry, strict=False) for row in rows]
        except msgspec.ValidationError as error:
            raise sqlite3.DatabaseError(f"a value of the wrong type: {error}") from None

    return _with_index(folder, read)


def index_path(folder: Path) -> Path:
    """Returns the path of the index of the sessions in `folder`/sessions."""
    key = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:32]
    return cache_folder() / "history" / f"{key}.sqlite"


def remember(path: Path) -> None:
    """Adds a session that was just saved. Errors are ignored, because the next call of `entries` finds the file."""
    ignored = contextlib.suppress(sqlite3.Error, OSError, UnicodeDecodeError, NewerIndexError)
    with ignored, _opened(path.parent.parent) as connection, connection:
        _insert(connection, [_read_entry(path)])


def migrate(connection: sqlite3.Connection, migrations: Iterable[str] = MIGRATIONS) -> None:
    """Brings the schema up to date, in one transaction, so that only one process does this at a time."""
    scripts = list(migrations)
    if _version(connection) == len(scripts):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = _version(connection)  # another process may have migrated the database meanwhile
        if done > len(scripts):
            raise NewerIndexError(f"schema {done}; this slipstream knows {len(scripts)}")
        for number, script in enumerate(scripts[done:], start=done + 1):
            for statement in script.split(";"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _with_index(folder: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Calls `work` with the index file, with a new file if the index is broken, or with an index in memory if no file
    can be used."""
    if folder.is_dir():
        for _ in range(2):
            try:
                with _opened(folder) as connection:
                    return work(connection)
            except (NewerIndexError, OSError):
                break
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the second: a damaged name in a message
                if isinstance(error, sqlite3.OperationalError) and not str(error).startswith("no such"):
                    break  # the index is not broken, but it is read-only, on a full disk, or locked for too long
                with contextlib.suppress(OSError):
                    _delete_index(index_path(folder))
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        migrate(connection)
        return work(connection)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[sqlite3.Connection]:
    """Opens the index. Raises UnsafeFileError if another user may have written the file, and for a link, because SQLite
    would follow the link."""
    check_directory(folder)
    path = index_path(folder)
    make_private_folder(path.parent, folder.parent)
    for file in _index_files(path):
        if os.path.lexists(file) and not is_regular_file(file):
            raise UnsafeFileError("is not a regular file", file)
    with contextlib.closing(sqlite3.connect(path, timeout=_TIMEOUT_S)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = NORMAL")  # rows lost in a power failure are read again from the files
        if connection.execute("SELECT 1 FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone():
            raise sqlite3.DatabaseError("a trigger or a view, which no version of slipstream makes")
        migrate(connection)
        yield connection


def _index_files(path: Path) -> list[Path]:
    """Returns the database and the files that SQLite stores next to it."""
    return [path.with_name(f"{path.name}{suffix}") for suffix in ("", "-journal", "-wal", "-shm")]


def _delete_index(path: Path) -> None:
    for file in _index_files(path):
        file.unlink(missing_ok=True)


def _catch_up(connection: sqlite3.Connection, folder: Path) -> None:
    """Adds rows for files that are new or changed, and deletes the rows of files that no longer exist."""
    known = {
        name: (size, modified)
        for name, size, modified in connection.execute("SELECT name, size_bytes, modified_ns FROM sessions")
    }
    # The files are listed after the rows are read. A session that is saved in between is then read twice, and its row
    # is never deleted by mistake.
    there = {name: (size, modified) for name, size, modified in _files(folder)}
    gone = [(name,) for name in known.keys() - there.keys()]
    fresh = [name for name, stamp in there.items() if known.get(name) != stamp]
    if not gone and not fresh:
        return
    found = []
    for name in fresh:
        with contextlib.suppress(FileNotFoundError):  # the file was deleted meanwhile
            found.append(_read_entry(folder / f"{name}{SUFFIX}"))
    with connection:
        connection.executemany("DELETE FROM sessions WHERE name = ?", gone)
        _insert(connection, found)


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    try:
        listing = os.scandir(folder)
    except OSError:
        return
    with listing:
        for item in listing:
            if item.name.endswith(SUFFIX) and item.is_file(follow_symlinks=False) and _is_text(item.name):
                with contextlib.suppress(FileNotFoundError):
                    facts = item.stat(follow_symlinks=False)
                    yield item.name.removesuffix(SUFFIX), facts.st_size, facts.st_mtime_ns


def _is_text(name: str) -> bool:
    """Whether the name of a file can be stored and printed. Linux allows names that are not UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _insert(connection: sqlite3.Connection, found: Iterable[IndexEntry]) -> None:
    names = ", ".join(f'"{column}"' for column in _COLUMNS)
    places = ", ".join("?" for _ in _COLUMNS)
    connection.executemany(
        f"INSERT OR REPLACE INTO sessions ({names}) VALUES ({places})", (msgspec.structs.astuple(one) for one in found)
    )


def _read_entry(path: Path) -> IndexEntry:
    facts = path.stat()
    entry = IndexEntry(path.name.removesuffix(SUFFIX), facts.st_size, facts.st_mtime_ns)
    try:
        filled = _filled(entry, decode_msgpack(read_file(path, LIMIT_BYTES), SessionGlance))
    except FileNotFoundError:
        raise
    except (DamagedFileError, OSError):
        return msgspec.structs.replace(entry, is_readable=False)
    is_storable = all(abs(value) <= _LARGEST for value in msgspec.structs.astuple(filled) if isinstance(value, int))
    return filled if is_storable else msgspec.structs.replace(entry, is_readable=False)


def _filled(entry: IndexEntry, glance: SessionGlance) -> IndexEntry:
    summary, tuning, revision = glance.summary, glance.tuning, glance.revision
    fitting, total = glance.fitting, tuning.total if tuning else None
    kept = tuning or fitting
    return msgspec.structs.replace(
        entry,
        created=glance.created,
        command=glance.command,
        script=shlex.join(glance.script),
        commit=revision.commit if revision else "",
        is_changed=revision.is_changed if revision else False,
        num_steps=summary.num_steps if summary else 0,
        num_undisturbed=summary.num_undisturbed if summary else None,
        step_ms=tuning.base_step_ms if tuning else summary.step_ms if summary else None,
        samples_per_s=tuning.base_samples_per_s if tuning else summary.samples_per_s if summary else None,
        bound=summary.bound if summary else "",
        recipe=str(kept.recipe) if kept else "",
        ratio=total.ratio if total else None,
        ratio_low=total.low if total else None,
        ratio_high=total.high if total else None,
        peak_bytes=glance.footprints[0].peak_bytes if glance.footprints and not fitting else None,
        largest_batch=fitting.largest if fitting else None,
    )
