from __future__ import annotations

import site
import sys
from pathlib import Path

import pytest

from slipstream.launch.target import display_name, file_stem, protected_folders, refusal


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.py", None, "no file"),
        ("note.ipynb", b"{}", "slipstream.watch()"),
        ("model.pt", b"PK", "not a Python script"),
        ("binary", b"\x7fELF\0\0", "not a Python script"),
        ("train.sh", b"for i in 1 2; do echo; done", "does not compile"),
        ("train.py", b"if True\n", None),  # the script's own failure
        ("train", b"print(1)\n", None),
    ],
)
def test_refusals(tmp_path: Path, name: str, content: bytes | None, words: str | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    sentence = refusal([str(path)])
    assert (sentence is None) if words is None else (sentence is not None and words in sentence)


def test_a_directory_needs_a_main(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert "train.py" in (refusal([str(tmp_path)]) or "")
    (tmp_path / "__main__.py").write_text("")
    assert refusal([str(tmp_path)]) is None


def test_a_forgotten_suffix_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert "Did you mean" in (refusal([str(tmp_path / "train")]) or "")


def test_names() -> None:
    assert display_name(["-m", "a.b", "-x"]) == "a.b"
    assert display_name(["train.py", "-x"]) == "train.py"


def test_file_stem_of_a_module_is_its_full_name() -> None:
    assert file_stem(["-m", "a.train", "-x"]) == "a.train"
    assert file_stem(["src/train.py", "-x"]) == "train"


def real_folders(cwd: Path, *script: str) -> set[Path]:
    return {folder.resolve() for folder in protected_folders(cwd, script)}


def make_package(entry: Path) -> None:
    """Creates a package that must not be imported: pkg, pkg.inner and pkg.inner.train."""
    (entry / "pkg" / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/train.py"):
        (entry / "pkg" / name).write_text("raise SystemExit('imported')")


def test_the_folders_of_a_script_behind_a_link_are_protected(tmp_path: Path) -> None:
    for name in ("work", "src", "links"):
        (tmp_path / name).mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    (tmp_path / "links" / "train.py").symlink_to(tmp_path / "src" / "train.py")
    folders = real_folders(tmp_path / "work", "../links/train.py")
    assert folders == {tmp_path / "work", tmp_path / "links", tmp_path / "src"}


@pytest.mark.parametrize("how", ["variable", "sys.path"])
def test_the_folders_of_a_module_are_protected(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, work = tmp_path / "entry", tmp_path / "work"
    make_package(entry)
    work.mkdir()
    if how == "variable":
        monkeypatch.setenv("PYTHONPATH", str(entry))
    else:
        monkeypatch.syspath_prepend(str(entry))
    before = set(sys.modules)
    assert {work, entry, entry / "pkg", entry / "pkg" / "inner"} == real_folders(work, "-m", "pkg.inner.train")
    assert not any(name.startswith("pkg") for name in set(sys.modules) - before)


def test_the_folders_of_a_module_behind_links_are_protected(tmp_path: Path) -> None:
    make_package(tmp_path / "far")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "pkg").symlink_to(tmp_path / "far" / "pkg")
    assert tmp_path / "far" / "pkg" in real_folders(tmp_path / "work", "-m", "pkg.inner.train")
    (tmp_path / "work" / "single.py").symlink_to(tmp_path / "far" / "pkg" / "__init__.py")
    assert tmp_path / "far" / "pkg" in real_folders(tmp_path / "work", "-m", "single")


def test_all_folders_of_a_package_without_init_are_protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "spread").mkdir(parents=True)
    (tmp_path / "two" / "spread" / "train.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    expected = {tmp_path / name for name in ("", "one", "two", "one/spread", "two/spread")}
    assert real_folders(tmp_path, "-m", "spread.train") == expected


def test_the_folder_of_all_installed_packages_is_not_protected(tmp_path: Path) -> None:
    installed = Path(pytest.__file__).parent
    assert installed.resolve() in real_folders(tmp_path, "-m", "pytest")
    assert not {Path(path).resolve() for path in site.getsitepackages()} & real_folders(tmp_path, "-m", "pytest")


def test_a_launcher_is_not_protected_but_its_script_is(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    folders = real_folders(tmp_path / "work", "-m", "torch.distributed.run", "--nnodes", "1", "../src/train.py")
    assert folders == {tmp_path / "work", tmp_path / "src"}


@pytest.mark.parametrize("name", ["nowhere.train", "__main__", "..x", "pytest.nowhere", "a b"])
def test_a_module_that_cannot_be_found(tmp_path: Path, name: str) -> None:
    assert tmp_path in real_folders(tmp_path, "-m", name)
