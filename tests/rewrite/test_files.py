"""Files of a patch: encodings, line endings, code of other people, diffs that apply, and complete writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from slipstream.records import Session
from slipstream.rewrite.apply import uncommitted, write
from slipstream.rewrite.diff import root_of, unified
from slipstream.rewrite.errors import ByHandError, PatchError
from slipstream.rewrite.make_patch import ChangedFile
from slipstream.rewrite.source import SourceText
from slipstream.rewrite.source_tree import SourceTree
from slipstream.testing.made_sessions import made_session
from slipstream.testing.projects import Project, argument

SOURCE = (
    "from torch.utils.data import DataLoader\nif True:\n    loader = DataLoader(\n        data,\n    )\nprint('end')"
)

ENCODED = {
    "crlf": SOURCE.replace("\n", "\r\n").encode(),
    "cr": SOURCE.replace("\n", "\r").encode(),
    "tabs": SOURCE.replace("    ", "\t").encode(),
    "bom": b"\xef\xbb\xbf" + SOURCE.encode(),
    "bom_crlf": b"\xef\xbb\xbf" + SOURCE.replace("\n", "\r\n").encode(),
    "latin_1": ("# -*- coding: latin-1 -*-\n# Grösse\n" + SOURCE).encode("latin-1"),
    "cp1251": ("#!/usr/bin/python\n# vim: set fileencoding=cp1251 :\n# Привет\n" + SOURCE).encode("cp1251"),
    "mixed": SOURCE.replace("\n", "\r\n", 2).encode(),
    "form_feed": SOURCE.replace("if True", "\f\nif True").encode(),
}


@pytest.mark.parametrize("name", ENCODED)
def test_every_other_byte_stays(project: Project, name: str) -> None:
    raw = ENCODED[name]
    path = project.write(raw)
    (file,) = project.patch(argument(project.site("loader ="))).files
    newline = b"\r\n" if name in ("crlf", "bom_crlf", "mixed") else b"\r" if name == "cr" else b"\n"
    indent = b"\t\t" if name == "tabs" else b"        "
    added = indent + b"num_workers=2," + newline
    at = file.after.index(added)
    assert file.after[:at] + file.after[at + len(added) :] == raw
    compile(file.after, str(path), "exec", dont_inherit=True)


@pytest.mark.parametrize(
    "raw",
    [
        b"def f(:\n",
        b"match x:\n    case [:\n",
        b"# -*- coding: klingon -*-\n",
        b"x = '\xff'\n",
        b"x = 1\0\n",
        b"if True:\n\tx = 1\n        y = 2\n",
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(PatchError, match=r"train.py cannot be read by Python 3"):
        SourceText(tmp_path / "train.py", raw)


NEWER = {
    (3, 12): "type Pair[T] = tuple[T, T]\n",
    (3, 14): "x = t'{loader}'\n",
    (3, 11): "try: pass\nexcept* OSError: pass\n",
}


@pytest.mark.parametrize("version", NEWER)
def test_newer_syntax_is_read_or_refused(tmp_path: Path, version: tuple[int, int]) -> None:
    raw = NEWER[version].encode()
    if sys.version_info >= version:
        SourceText(tmp_path / "train.py", raw)  # libcst may also refuse it, with the same message
    else:
        with pytest.raises(PatchError, match="If its syntax is newer"):
            SourceText(tmp_path / "train.py", raw)


def test_a_patch_that_would_break_the_file_is_not_made(tmp_path: Path) -> None:
    from slipstream.rewrite.source import Splice

    with pytest.raises(PatchError, match="would not be valid Python"):
        SourceText(tmp_path / "train.py", b"x = (1)\n").spliced([Splice(4, 5, "")])


def tree(cwd: Path, script: str = "train.py", session: Session | None = None) -> SourceTree:
    session = session or msgspec.structs.replace(made_session(), cwd=str(cwd))
    return SourceTree(session, cwd / script, cwd / script)


def test_a_module_is_patched_where_the_call_is(project: Project) -> None:
    project.write("import data.loading\n")
    path = project.write(
        "from torch.utils.data import DataLoader\ndef make(d):\n    return DataLoader(d)\n", "data/loading.py"
    )
    (file,) = project.patch(argument(project.site("return", "data/loading.py"))).files
    assert file.path == path and b"DataLoader(d, num_workers=2)" in file.after


def test_only_the_users_own_tree(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "scripts").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / "scripts/train.py").touch()
    own = tree(project / "scripts")
    assert own.file(str(project / "package/data.py")) == project / "package/data.py"
    for path in (
        tmp_path / "elsewhere/data.py",
        project / ".venv/lib/python3.11/site-packages/fast/data.py",
        Path(os.__file__),
        Path(pytest.__file__),
    ):
        with pytest.raises(ByHandError, match=r"outside of the project|installed package"):
            own.file(str(path))
    with pytest.raises(ByHandError, match="no file"):
        own.file("<string>")


def test_a_session_from_another_machine(tmp_path: Path) -> None:
    """The paths of a session from another machine are resolved relative to the script."""
    session = made_session()
    here = SourceTree(session, tmp_path / "train.py", Path(session.cwd) / "train.py")
    assert here.file("/home/ada/project/train.py") == tmp_path / "train.py"
    assert here.file("/home/ada/project/data/photos.py") == tmp_path / "data/photos.py"
    with pytest.raises(ByHandError, match="outside"):
        here.file("/home/ada/other.py")


def test_a_session_cannot_widen_the_project(tmp_path: Path) -> None:
    """Another person may have written the session. Neither its working directory nor a link leads out of the
    project.
    """
    script, other = tmp_path / "project" / "train.py", tmp_path / "other" / "data.py"
    for file in (script, other):
        file.parent.mkdir()
        file.touch()
    (script.parent / "data.py").symlink_to(other)
    session = msgspec.structs.replace(made_session(), cwd="/")
    for name in (other, script.parent / "data.py"):
        with pytest.raises(ByHandError, match="outside"):
            SourceTree(session, script, script).file(str(name))


@pytest.mark.parametrize("name", ENCODED)
def test_the_diff_applies(project: Project, name: str) -> None:
    path = project.write(ENCODED[name], "a folder/train.py")
    other = project.write("x = 1", "a folder/sub/other.py")
    files = [
        ChangedFile(path, ENCODED[name], b"# new\n" + ENCODED[name] + b"# end"),
        ChangedFile(other, b"x = 1", b"x = 2\n"),
    ]
    root = root_of(files, path, Path("/elsewhere"))
    assert root == path.parent
    done = subprocess.run(["git", "apply", "-"], input=unified(files, root), cwd=root, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert [file.path.read_bytes() for file in files] == [file.after for file in files]


def test_the_root_of_a_diff(tmp_path: Path) -> None:
    files = [
        ChangedFile(tmp_path / "scripts/train.py", b"", b"1"),
        ChangedFile(tmp_path / "package/data.py", b"", b"1"),
    ]
    assert root_of(files, tmp_path / "scripts/train.py", tmp_path / "docs") == tmp_path
    assert b"+++ b/package/data.py" in unified(files, tmp_path)


def test_a_diff_is_applied_where_the_command_was_typed(tmp_path: Path) -> None:
    files = [ChangedFile(tmp_path / "src/train.py", b"", b"1")]
    root = root_of(files, tmp_path / "src/train.py", tmp_path)
    assert root == tmp_path and b"+++ b/src/train.py" in unified(files, root)


def test_written_whole_with_mode_and_through_links(tmp_path: Path) -> None:
    real = tmp_path / "real.py"
    real.write_bytes(b"old")
    real.chmod(0o750)
    (tmp_path / "train.py").symlink_to(real)
    write([ChangedFile(tmp_path / "train.py", b"old", b"new")])
    assert real.read_bytes() == b"new" and real.stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "train.py").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real.py", "train.py"]


def test_all_files_or_none(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_bytes(b"old")
    files = [ChangedFile(tmp_path / "a.py", b"old", b"new"), ChangedFile(tmp_path / "b.py", b"another", b"new")]
    with pytest.raises(PatchError, match=r"b.py changed while"):
        write(files)
    with pytest.raises(PatchError, match="Nothing was written"):
        write([files[0], ChangedFile(tmp_path / "missing/c.py", b"", b"new")])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.py": b"old", "b.py": b"old"}


def test_what_git_does_not_know(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    file = ChangedFile(tmp_path / "train.py", b"", b"")
    file.path.write_text("x = 1\n")
    assert uncommitted([file]) == []
    git("init", "-q")
    assert uncommitted([file]) == [file.path]
    git("add", "train.py")
    git("commit", "-qm", "first")
    (tmp_path / "other.py").write_text("y = 1\n")
    assert uncommitted([file]) == []
    file.path.write_text("x = 2\n")
    assert uncommitted([file]) == [file.path]
