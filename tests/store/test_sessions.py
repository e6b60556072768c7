from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slipstream.records import Ending, Session
from slipstream.store.sessions import StorageError, latest, load_session, save_session
from slipstream.testing.made_sessions import made_environment


def make_session(cwd: Path) -> Session:
    return Session(
        "check",
        ["sub/train me.py"],
        str(cwd),
        "2026-01-02T03:04:05+00:00",
        made_environment(),
        Ending("finished", 0, 1.0),
    )


def test_session_round_trip(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    path = save_session(session, tmp_path)
    assert path.name == "20260102T030405-train-me.msgpack"
    assert load_session(path) == session
    second = save_session(msgspec.structs.replace(session, notes=["second"]), tmp_path)
    assert second != path and latest(tmp_path) == second
    assert sorted(file.suffix for file in path.parent.iterdir()) == [".msgpack", ".msgpack"]


def test_file_that_is_not_a_session_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nonsense")
    with pytest.raises(StorageError, match="schema"):
        load_session(tmp_path / "x")
    assert latest(tmp_path) is None
