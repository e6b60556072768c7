"""A session of somebody else controls neither the terminal nor the markup, in any format that is printed."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from slipstream.cli.group import slipstream
from slipstream.records import Session
from slipstream.store.older_sessions import decode_session

SAVED = Path(__file__).parents[1] / "golden" / "saved"
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\r|<b>`x`\u202e[red]"


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every text in the session, and of long lists those of the first elements."""
    if isinstance(data, str):
        yield path
    for key, part in data.items() if isinstance(data, dict) else enumerate(data[:3]) if isinstance(data, list) else ():
        yield from places(part, (*path, key))


def hostile_session(name: str) -> Session:
    data = msgspec.to_builtins(decode_session(gzip.decompress((SAVED / f"{name}.msgpack.gz").read_bytes())))
    for *folders, key in list(places(data)):
        node = data
        for folder in folders:
            node = node[folder]
        before, node[key] = node[key], node[key] + HOSTILE
        try:
            msgspec.convert(data, Session)
        except msgspec.ValidationError:  # only certain words are allowed here
            node[key] = before
    return msgspec.convert(data, Session)


@pytest.mark.parametrize("name", ["check", "tune", "memory", "fit"])
def test_printed_reports(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".slipstream" / "sessions"
    folder.mkdir(parents=True)
    path = folder / "20260101T000000-train.msgpack"
    path.write_bytes(msgspec.msgpack.encode(hostile_session(name)))
    forms = [[], ["--quiet"], ["--markdown", "-"]]
    for words in (*(["report", str(path), *form] for form in forms), ["history"], ["compare", str(path), str(path)]):
        done = CliRunner().invoke(slipstream, words)
        assert done.exit_code in (0, 2), words
        assert not [char for char in "\x1b\x9b\x07\u202e" if char in done.output], (words, done.output)
        assert "owned" in done.output or words[0] == "compare" or "--quiet" in words
