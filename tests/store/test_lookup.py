"""Sessions are found by the words that a user may type."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.machine.environment import read_variables
from slipstream.machine.git import read_revision, resolve_commit
from slipstream.records import Revision
from slipstream.store.lookup import find_session
from slipstream.store.sessions import StorageError, save_session
from slipstream.testing.made_sessions import made_session


def save(root: Path, second: int, commit: str = "", changed: bool = False, script: tuple[str, ...] = ("a.py",)) -> Path:
    session = msgspec.structs.replace(
        diagnose(made_session(num_steps=2)),
        script=list(script),
        created=f"2026-01-01T00:00:{second:02}+00:00",
        revision=Revision(commit, changed) if commit else None,
    )
    path = save_session(session, root)
    os.utime(path, (1_800_000_000 + second, 1_800_000_000 + second))
    return path


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_if_no_file_is_a_session_one_is_named(tmp_path: Path) -> None:
    folder = tmp_path / ".slipstream" / "sessions"
    folder.mkdir(parents=True)
    (folder / "bad.msgpack").write_bytes(b"nonsense")
    with pytest.raises(StorageError, match=r"'bad\.msgpack'"):
        find_session("latest", tmp_path)


def test_by_word_name_and_path(tmp_path: Path) -> None:
    first, second = save(tmp_path, 1), save(tmp_path, 2, script=("-m", "pkg.b"))
    third = save(tmp_path, 3, script=("a.py", "--epochs", "2"))
    assert find_session("latest", tmp_path) == third
    assert find_session("previous", tmp_path) == first, "of the same script, whatever its arguments"
    assert find_session(second.stem, tmp_path) == second
    assert find_session(second.stem[:15], tmp_path) == second
    assert find_session(str(first)) == first and find_session(first.name, tmp_path) == first
    assert find_session("missing.msgpack", tmp_path) == Path("missing.msgpack")
    for name, told in {"20260101": "3 sessions begin with", "nothing": "is no session"}.items():
        with pytest.raises(StorageError, match=told):
            find_session(name, tmp_path)
    with pytest.raises(StorageError, match="Make one"):
        find_session("latest", tmp_path / "empty")
    (tmp_path / "alone").mkdir()
    save(tmp_path / "alone", 1)
    with pytest.raises(StorageError, match="before the latest"):
        find_session("previous", tmp_path / "alone")


def test_timed_lookup_skips_sessions_without_steps(tmp_path: Path) -> None:
    """A session of `memory`, or of a check that failed, is skipped when two checks are compared."""
    first, other = save(tmp_path, 1), save(tmp_path, 2, script=("b.py",))
    second = save(tmp_path, 3)
    bare = msgspec.structs.replace(made_session(num_steps=2), script=["a.py"], command="memory")
    stepless = save_session(bare, tmp_path)
    os.utime(stepless, (1_800_000_009, 1_800_000_009))
    assert find_session("latest", tmp_path) == stepless
    assert find_session("latest", tmp_path, is_timed=True) == second
    assert find_session("previous", tmp_path, is_timed=True) == first
    assert find_session("latest", tmp_path, is_timed=True, script=["b.py", "--fast"]) == other
    assert find_session("latest", tmp_path, is_timed=True, script=["new.py"]) == second, "where there is no better one"


def test_by_commit(tmp_path: Path) -> None:
    assert read_revision(tmp_path) is None or not str(tmp_path).startswith("/tmp")
    git(tmp_path, "init", "-q")
    assert read_revision(tmp_path) is None, "no commit yet"
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "one")
    one = git(tmp_path, "rev-parse", "HEAD").strip()
    assert read_revision(tmp_path) == Revision(one, False)
    (tmp_path / "log.txt").write_text("not git's")
    (tmp_path / "a.py").write_text("2")
    assert read_revision(tmp_path) == Revision(one, True)
    git(tmp_path, "commit", "-qam", "two")
    two = git(tmp_path, "rev-parse", "HEAD").strip()
    clean, changed, later = save(tmp_path, 1, one), save(tmp_path, 2, one, changed=True), save(tmp_path, 3, two)
    assert find_session("HEAD~1", tmp_path) == clean, "as committed comes before newer"
    assert find_session(one[:8], tmp_path) == clean and changed != clean
    assert find_session("HEAD", tmp_path) == later
    git(tmp_path, "commit", "-qm", "three", "--allow-empty")
    with pytest.raises(StorageError, match="No session was measured at"):
        find_session("HEAD", tmp_path)
    assert resolve_commit("--help", tmp_path) == ""


def test_environment_variables_are_selected_by_name() -> None:
    told = read_variables({"OMP_NUM_THREADS": "2", "API_TOKEN": "secret", "HOME": "/root", "LD_PRELOAD": "x.so"})
    assert told == {"LD_PRELOAD": "x.so", "OMP_NUM_THREADS": "2"}
