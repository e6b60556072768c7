"""The values of today's outputs are those in `expected/`, and the files in `saved/` open. See commands.py."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from commands import CASES, EXPECTED, WRITE, differences, encode
from inputs import SAVED, SAVED_SESSIONS, fill_workspace, read_saved

from slipstream.recipe.file import read_recipe
from slipstream.store.sessions import load_session
from slipstream.tuning.journal import Journal


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    fill_workspace(folder)
    return folder


@pytest.fixture(autouse=True)
def surroundings(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same directory, terminal and time zone everywhere."""
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # otherwise patch asks for it
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("name", CASES)
def test_no_value_has_changed(name: str) -> None:
    path, found = EXPECTED / f"{name}.json", encode(CASES[name]())
    if os.environ.get(WRITE):
        path.write_text(found, encoding="utf-8")
    changed = differences(json.loads(path.read_text(encoding="utf-8")), json.loads(found))
    assert not changed, "\n".join(changed[:20])


def test_every_expected_file_has_a_case() -> None:
    assert {path.stem for path in EXPECTED.glob("*.json")} == set(CASES)


@pytest.mark.parametrize("name", SAVED_SESSIONS)
def test_a_saved_session_opens(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.msgpack"
    path.write_bytes(read_saved(name))
    session = load_session(path)
    assert session.command == ("tune" if name == "fit" else name)
    assert session.script == ["train.py"] and session.cwd == "/tmp/golden-project" and session.steps
    assert bool(session.tuning) is (name == "tune") and bool(session.fitting) is (name == "fit")
    assert bool(session.footprints) is (name in ("memory", "fit"))


def test_the_saved_recipe_opens() -> None:
    file = read_recipe(SAVED / "slipstream.toml")
    assert [(one.technique, one.setting) for one in file.recipe.choices] == [
        ("fused_optimizer", True),
        ("batched_fetch", True),
    ]
    assert file.script == ["train.py"] and file.base_step_ms == 3.4716
    assert file.total is not None and (file.total.ratio, file.total.low, file.total.high) == (1.7268, 1.6088, 1.8733)


def test_the_saved_journal_opens(tmp_path: Path) -> None:
    """Nothing of it is used, because its tuning searched in another way. The copy says that it was made now."""
    first, *rest = (SAVED / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    header = json.loads(first) | {"created": datetime.now(timezone.utc).isoformat()}
    copy = tmp_path / "journals" / "journal.jsonl"
    copy.parent.mkdir()
    copy.write_text("\n".join([json.dumps(header), *rest]) + "\n", encoding="utf-8")
    journal = Journal(str(copy), header["facts"], is_resumed=True)
    assert journal.is_empty and journal.is_kept and not journal.fault
