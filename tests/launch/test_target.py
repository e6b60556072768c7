from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.launch.target import display_name, file_stem, refusal


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
