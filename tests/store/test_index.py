"""The index of sessions is a copy of fields of the files. It is repaired after any damage."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Choice, Recipe, Revision, Session, Speed, Tuning
from slipstream.store import index
from slipstream.store.index import MIGRATIONS, NewerIndexError, entries, index_path, migrate
from slipstream.store.sessions import load_session, make_folder, newest_first, save_session
from slipstream.testing.made_sessions import made_session

replace = msgspec.structs.replace


def session_of(script: str = "train.py", **facts: object) -> Session:
    return replace(diagnose(made_session(num_steps=12)), script=[script], **facts)


def age(path: Path, seconds: int) -> None:
    os.utime(path, (1_800_000_000 + seconds, 1_800_000_000 + seconds))


def test_rows_equal_the_fields_of_the_sessions(tmp_path: Path) -> None:
    tuning = Tuning(32.0, 1000.0, total=Speed(1.5, 1.4, 1.6), recipe=Recipe((Choice("workers", 2),)))
    first = save_session(session_of(revision=Revision("a" * 40, True)), tmp_path)
    second = save_session(session_of("other.py", command="tune", tuning=tuning), tmp_path)
    age(first, 0), age(second, 1)
    newest, oldest = entries(tmp_path / ".slipstream")
    assert (newest.name, oldest.name) == (second.stem, first.stem)
    assert (newest.command, newest.script, newest.recipe, newest.ratio, newest.ratio_low) == (
        *("tune", "other.py", "workers=2", 1.5, 1.4),
    )
    session = load_session(first)
    assert session.summary is not None
    assert (oldest.commit, oldest.is_changed, oldest.step_ms) == ("a" * 40, True, session.summary.step_ms)
    assert (oldest.samples_per_s, oldest.bound) == (session.summary.samples_per_s, session.summary.bound)
    assert [entry.script for entry in entries(tmp_path / ".slipstream", script="OTHER")] == ["other.py"]
    assert [entry.name for entry in entries(tmp_path / ".slipstream", limit=1)] == [second.stem]


_HARMS = {
    "no table": "DROP TABLE sessions",
    "wrong type": "UPDATE sessions SET num_steps = 'many'",
    "trigger": "CREATE TRIGGER t BEFORE DELETE ON sessions BEGIN SELECT RAISE(IGNORE); END;"
    " INSERT INTO sessions SELECT 'gone', 1, 1, 1, '', '', '', '', 0, 0, 1.0, 1.0, '', '', 1.0, 1.0, 1.0, 1, 1, 1",
    "view": "DROP TABLE sessions; CREATE VIEW sessions AS SELECT 1 AS name",
}


@pytest.mark.parametrize("harm", ["missing", "garbage", "cut", "no table", "wrong type", "trigger", "view"])
def test_broken_index_is_rebuilt(tmp_path: Path, harm: str) -> None:
    paths = [save_session(session_of(), tmp_path) for _ in range(3)]
    file = index_path(tmp_path / ".slipstream")
    if harm == "missing":
        file.unlink()
    elif harm == "garbage":
        file.write_bytes(b"not a database at all" * 500)
    elif harm == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        with sqlite3.connect(file) as connection:
            connection.executescript(_HARMS[harm])
    assert {entry.name for entry in entries(tmp_path / ".slipstream")} == {path.stem for path in paths}
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (3,)


def test_new_changed_and_deleted_files(tmp_path: Path) -> None:
    kept, changed, gone = (save_session(session_of(name), tmp_path) for name in ("a.py", "b.py", "c.py"))
    changed.write_bytes(msgspec.msgpack.encode(session_of("new.py")))
    age(changed, 5)
    gone.unlink()
    (kept.parent / "copied.msgpack").write_bytes(kept.read_bytes())
    (kept.parent / "broken.msgpack").write_bytes(kept.read_bytes()[:100])
    found = {entry.name: entry for entry in entries(tmp_path / ".slipstream")}
    assert {name: entry.script for name, entry in found.items() if entry.is_readable} == {
        kept.stem: "a.py",
        changed.stem: "new.py",
        "copied": "a.py",
    }
    assert not found["broken"].is_readable


def test_files_are_read_if_no_index_can_be_written(tmp_path: Path) -> None:
    save_session(session_of(), tmp_path)
    file = index_path(tmp_path / ".slipstream")
    file.unlink()
    file.mkdir()  # no file can be opened there
    assert len(entries(tmp_path / ".slipstream")) == 1
    assert save_session(session_of(), tmp_path).is_file(), "the index must not cost a session"
    assert entries(tmp_path / "nowhere") == []


def test_an_older_schema_is_migrated_and_a_newer_one_left_alone(tmp_path: Path) -> None:
    path = save_session(session_of(), tmp_path)
    file = index_path(tmp_path / ".slipstream")
    later = (*MIGRATIONS, "ALTER TABLE sessions ADD COLUMN mood TEXT; DELETE FROM sessions")
    connection = sqlite3.connect(file)
    migrate(connection, later)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(later),)
    assert "mood" in {row[1] for row in connection.execute("PRAGMA table_info(sessions)")}
    migrate(connection, later)  # nothing left to do
    with pytest.raises(NewerIndexError):
        migrate(connection)
    connection.close()
    before = file.read_bytes()
    assert [entry.name for entry in entries(tmp_path / ".slipstream")] == [path.stem]
    save_session(session_of("second.py"), tmp_path)
    assert file.read_bytes() == before


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, (MIGRATIONS[0], "ALTER TABLE sessions ADD COLUMN mood TEXT; nonsense"))
        assert connection.execute("PRAGMA user_version").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_no_file_of_the_project_is_opened_as_a_database(tmp_path: Path) -> None:
    """SQLite deletes the file that a journal beside the database names. A cloned repository may contain both."""
    victim = tmp_path / "victim"
    victim.write_text("not ours")
    (tmp_path / "clone").mkdir()
    folder = make_folder(tmp_path / "clone")
    with contextlib.closing(sqlite3.connect(folder / "index.sqlite")) as connection:
        migrate(connection)
    plant_journal(folder / "index.sqlite", victim)
    planted = {path.name: path.read_bytes() for path in folder.iterdir()}
    saved = save_session(session_of(), tmp_path / "clone")
    assert [entry.name for entry in entries(folder)] == [saved.stem]
    assert victim.read_text() == "not ours"
    assert {name: (folder / name).read_bytes() for name in planted} == planted
    assert sorted(path.name for path in folder.iterdir()) == sorted([*planted, "sessions"])


def plant_journal(database: Path, named: Path) -> None:
    """Writes a journal that looks as if a transaction over several databases had been interrupted."""
    magic, name = bytes.fromhex("d9d505f920a163d7"), os.fsencode(named)
    page_bytes = 4096
    header = magic + struct.pack(">IIIII", 0, 12345, database.stat().st_size // page_bytes, 512, page_bytes)
    lock_page = struct.pack(">I", 0x40000000 // page_bytes + 1)
    tail = lock_page + name + struct.pack(">II", len(name), sum(name)) + magic
    database.with_name(f"{database.name}-journal").write_bytes(header.ljust(512, b"\0") + tail)


@pytest.mark.parametrize("where", ["writable by others", "inside the project", "a file"])
def test_an_index_that_others_may_have_written_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    project = tmp_path / "project"
    cache = project / "cache" if where == "inside the project" else tmp_path / "cache"
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(cache))
    project.mkdir()
    folder = make_folder(project)
    path = index_path(folder)
    if where == "a file":
        cache.write_text("")
    else:
        path.parent.mkdir(parents=True, mode=0o700)
        path.write_text("planted")
    if where == "writable by others":
        path.parent.chmod(0o770)
    saved = save_session(session_of(), project)
    assert [entry.name for entry in entries(folder)] == [saved.stem]
    assert not path.parent.is_dir() or [file.read_text() for file in path.parent.iterdir()] == ["planted"]


def test_the_folder_of_the_index_is_private(tmp_path: Path) -> None:
    save_session(session_of(), tmp_path)
    path = index_path(tmp_path / ".slipstream")
    assert path.is_file() and path.parent.stat().st_mode & 0o777 == 0o700


WRITER = """
import sys
from pathlib import Path
from slipstream.store.sessions import load_session, save_session
session = load_session(Path(sys.argv[1]))
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    save_session(session, Path(sys.argv[2]))
"""


def writer(source: Path, root: Path, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(source), str(root), str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source.msgpack"
    source.write_bytes(msgspec.msgpack.encode(session_of()))
    both = [writer(source, tmp_path, 25) for _ in range(2)]
    while any(one.poll() is None for one in both):
        entries(tmp_path / ".slipstream")
        time.sleep(0.02)
    assert [one.wait(60) for one in both] == [0, 0]
    saved = {path.stem for path in newest_first(tmp_path)}
    assert len(saved) == 50, "equal names must not replace each other"
    with sqlite3.connect(index_path(tmp_path / ".slipstream")) as connection:
        assert {row[0] for row in connection.execute("SELECT name FROM sessions")} == saved


def test_session_saved_while_the_index_is_read_is_not_deleted_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_session(session_of(), tmp_path)
    listed = index._files

    def list_then_save(folder: Path) -> Iterator[tuple[str, int, int]]:
        yield from list(listed(folder))
        save_session(session_of("meanwhile.py"), tmp_path)

    monkeypatch.setattr(index, "_files", list_then_save)
    entries(tmp_path / ".slipstream")
    with sqlite3.connect(index_path(tmp_path / ".slipstream")) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (2,)


def test_a_kill_during_a_write_loses_at_most_that_session(tmp_path: Path) -> None:
    source = tmp_path / "source.msgpack"
    source.write_bytes(msgspec.msgpack.encode(session_of()))
    for delay_s in (0.005, 0.02, 0.05):
        one = writer(source, tmp_path, 100_000)
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
        time.sleep(delay_s)
        one.send_signal(signal.SIGKILL)
        one.wait()
        paths = newest_first(tmp_path)
        assert all(load_session(path) for path in paths), "a file that is there is whole"
        assert {entry.name for entry in entries(tmp_path / ".slipstream") if entry.is_readable} == {
            path.stem for path in paths
        }
    written_now = make_folder(tmp_path) / "sessions/20260101T000000-train.999999999.partial"
    left = [*tmp_path.rglob("*.partial"), written_now.with_name("20260101T000000-left.999999999.partial")]
    for path in left:
        path.write_bytes(b"half")
        os.utime(path, (time.time() - 7200,) * 2)
    written_now.write_bytes(b"half")
    save_session(session_of(), tmp_path)
    assert list(tmp_path.rglob("*.partial")) == [written_now], "its process may be in another container"
