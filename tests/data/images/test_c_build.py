from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.data.images import c_build
from slipstream.data.images.c_build import CompileError, find_compiler, load_library

pytestmark = pytest.mark.skipif(not find_compiler(), reason="there is no C compiler")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C source with a function to call, and a separate cache folder."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n")
    return path


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "compiled").iterdir())


def test_compiled_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_library(source).answer() == 42
    (library,) = kept(tmp_path)
    monkeypatch.setattr(c_build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert load_library(source).answer() == 42
    assert kept(tmp_path) == [library]


def test_another_source_is_another_library(source: Path, tmp_path: Path) -> None:
    load_library(source)
    source.write_text("int answer(void) { return 43; }\n")
    assert load_library(source).answer() == 43
    assert len(kept(tmp_path)) == 2


def test_a_damaged_file_is_never_loaded(source: Path, tmp_path: Path) -> None:
    words = "from slipstream.data.images.c_build import load_library, Path; load_library(Path({!r}))"
    subprocess.run([sys.executable, "-c", words.format(str(source))], check=True)  # another process loads the library
    (library,) = kept(tmp_path)
    library.write_bytes(library.read_bytes()[: library.stat().st_size // 2])
    assert load_library(source).answer() == 42
    assert [path.name for path in kept(tmp_path)] == [library.name]


def test_files_that_others_may_write_are_not_loaded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_library(source)
    (library,) = kept(tmp_path)
    library.parent.chmod(0o777)
    seen: list[str] = []
    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda path: seen.append(path) or real(path))
    assert load_library(source).answer() == 42
    assert seen and not seen[0].startswith(str(tmp_path / "cache"))


def test_a_folder_that_cannot_be_created(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file" / "cache"))
    assert load_library(source).answer() == 42


def test_the_reason_is_reported_if_there_is_no_library(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("this is no C\n")
    with pytest.raises(CompileError, match=r"cannot compile broken\.c: .*error"):
        load_library(broken)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert find_compiler() == []
    with pytest.raises(CompileError, match="no C compiler"):
        load_library(source)


def test_the_compiler_named_by_the_user_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own-cc"
    own.write_text(f'#!/bin/sh\nexec {find_compiler()[0]} "$@"\n')
    own.chmod(0o700)
    monkeypatch.setenv("CC", f"{own} -g0")
    assert find_compiler() == [os.fspath(own), "-g0"]
    monkeypatch.setenv("CC", "'own-cc")
    assert find_compiler() and os.fspath(own) not in find_compiler()
