from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.recipe.file import differences, read_recipe, write_recipe
from slipstream.recipe.text import TomlLines
from slipstream.records import Choice, Numerics, Recipe, Session, Speed, Tuning, Verdict
from slipstream.records.race import FARTHEST

RECIPE = Recipe((Choice("workers", 2), Choice("fused_optimizer"), Choice("mixed_precision", "bf16")))
NUMERICS = Numerics("redrawn", True, "inside the band")
TUNING = Tuning(
    base_step_ms=50.0,
    base_samples_per_s=640.0,
    verdicts=[
        Verdict("workers", 2, "kept", "", Speed(1.62, 1.55, 1.70), NUMERICS),
        Verdict("mixed_precision", "bf16", "kept", "", Speed(1.9, 1.8, 2.0), kind="cumulative"),
    ],
    total=Speed(1.75, 1.7, 1.8),
    recipe=RECIPE,
)


@pytest.fixture
def written(tmp_path: Path, session: Session) -> Path:
    (tmp_path / "train.py").write_text("print('train')\n")
    here = msgspec.structs.replace(session, cwd=str(tmp_path), script=["train.py", "--name", 'a "b" \\ ü'])
    write_recipe(tmp_path / "slipstream.toml", TUNING, here)
    return tmp_path / "slipstream.toml"


def test_a_written_recipe_can_be_read(written: Path) -> None:
    file = read_recipe(written)
    assert file.recipe == RECIPE
    assert file.script == ["train.py", "--name", 'a "b" \\ ü'] and len(file.script_digest) == 64
    assert file.base_step_ms == 50.0 and file.total == Speed(1.75, 1.7, 1.8)
    assert file.machine["cores"] == 2.0 and file.machine["torch"] == "2.13.0"
    assert [path.name for path in written.parent.iterdir() if "partial" in path.name] == []


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path, session: Session) -> None:
    """A cloned repository may contain either link."""
    target = tmp_path / "target"
    target.write_text("not ours")
    for name in ("slipstream.toml", "slipstream.toml.partial"):
        (tmp_path / name).symlink_to(target)
    write_recipe(tmp_path / "slipstream.toml", TUNING, session)
    assert target.read_text() == "not ours" and not (tmp_path / "slipstream.toml").is_symlink()
    assert read_recipe(tmp_path / "slipstream.toml").recipe == TUNING.recipe


def test_every_line_has_its_evidence_as_a_comment(written: Path) -> None:
    lines = written.read_text().splitlines()
    assert "workers = 2               # 1.62x (1.55 to 1.70), redrawn" in lines
    assert "fused_optimizer = true" in lines, "a technique without evidence has no comment"
    assert any(line.startswith('mixed_precision = "bf16"') and "with the lines above" in line for line in lines)
    assert lines[1].startswith("#     slipstream run train.py --name")
    assert "version = 1" in lines


def test_a_ratio_without_an_interval_is_written_without_bounds(tmp_path: Path, session: Session) -> None:
    path = tmp_path / "slipstream.toml"
    write_recipe(path, msgspec.structs.replace(TUNING, total=Speed(0.79, 1 / FARTHEST, FARTHEST)), session)
    text = path.read_text()
    assert "as it is: about 0.79x, too few rounds for an interval.\n" in text
    assert "ratio = 0.79" in text and "high" not in text and read_recipe(path).total is None


def test_an_empty_recipe_can_be_written_and_read(tmp_path: Path, session: Session) -> None:
    write_recipe(tmp_path / "slipstream.toml", Tuning(50.0, 640.0), session)
    file = read_recipe(tmp_path / "slipstream.toml")
    assert file.recipe == Recipe() and file.total is None


def test_a_conflict_is_refused_with_both_names(tmp_path: Path) -> None:
    text = 'version = 1\n[recipe]\ncompile = "default"\nfused_attention = true\n'
    said = _fault(tmp_path, text)
    assert said.startswith(", line 4: ") and "compile" in said and "fused_attention" in said and "both claim" in said
    (tmp_path / "slipstream.toml").write_text(text.replace("true", "false"))
    assert read_recipe(tmp_path / "slipstream.toml").recipe == Recipe((Choice("compile", "default"),))


def _fault(tmp_path: Path, text: str) -> str:
    path = tmp_path / "slipstream.toml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_recipe(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (
            "version = 1\n[recipe]\n\nwokers = 2\n",
            4,
            "there is no technique 'wokers'; the techniques are: accumulation",
        ),
        ("version = 1\n[recipe]\nworkers = true\n", 3, "workers = true is not possible; allowed: 0 to 256, or false"),
        ("version = 1\n[recipe]\nworkers = 999\n", 3, "workers = 999 is not possible"),
        ("version = 1\n[recipe]\nworkers = 2.5\n", 3, "workers = 2.5 is not possible"),
        ("version = 1\n[recipe]\nworkers = [2]\n", 3, "is not possible"),
        ("version = 1\n[recipe]\nmixed_precision = 'bf61'\n", 3, 'allowed: "bf16", "fp16", or false'),
        ("version = 1\n[recipe]\nfused_optimizer = 1\n", 3, "fused_optimizer = 1 is not possible; allowed: true"),
        ("version = 1\n[recipe]\nnothing = true\n", 3, "there is no technique 'nothing'"),
        ("# a comment\nversion = 2\n", 2, "version is 2; this version of slipstream reads: 1"),
        ("version = true\n", 1, "version is true; this version of slipstream reads: 1"),
        ("version = 1\n[recipes]\n", 2, "'recipes' is not known here; allowed: version, recipe, script"),
        ("version = 1\nrecipe = 3\n", 2, "'recipe' must be a table"),
        ("version = 1\n[script]\ncommand = 'train.py'\n", 3, "command must be a list of strings"),
        ("version = 1\n[script]\nsha256 = 3\n", 3, "sha256 must be a string, not 3"),
        ("version = 1\n[evidence]\nratio = 'much'\n", 3, 'ratio must be a number, not "much"'),
        ("version = 1\n[machine]\ncores = [1]\n", 3, "cores must be a string or a number"),
    ],
)
def test_an_error_names_the_line_and_what_is_allowed(tmp_path: Path, text: str, line: int, what: str) -> None:
    message = _fault(tmp_path, text)
    assert message.startswith(f", line {line}: ") and what in message


def test_other_errors_name_the_file(tmp_path: Path) -> None:
    assert "version is missing; this version of slipstream reads: 1" in _fault(tmp_path, "[recipe]\n")
    assert "is not TOML" in (fault := _fault(tmp_path, "version = 1\n[recipe\n")) and "line 2" in fault
    with pytest.raises(ValueError, match="cannot be read"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not text in UTF-8"):
        read_recipe(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    "text",
    [
        "version = 1\na = " + "[" * 5000 + "]" * 5000,
        "version = 1\na = " + "{a=" * 5000 + "1" + "}" * 5000,
        "version = 1\n[recipe]\nworkers." + "a." * 5000 + "a = 1",
    ],
    ids=["lists", "tables", "keys"],
)
def test_a_deeply_nested_recipe_is_refused(tmp_path: Path, text: str) -> None:
    assert "nested too deeply" in _fault(tmp_path, text)


def test_a_number_that_is_too_large_is_refused(tmp_path: Path) -> None:
    assert "ratio is too large" in _fault(tmp_path, f"version = 1\n[evidence]\nratio = 1{'0' * 400}")
    assert "is not TOML" in _fault(tmp_path, f"version = 1\n[evidence]\nratio = 1{'0' * 5000}")


@pytest.mark.parametrize("kind", ["pipe", "directory", "endless device", "large"])
def test_only_a_small_regular_file_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "slipstream.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        path.write_bytes(b"#" * (1 << 21))
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="cannot be read"):
        read_recipe(path)


def test_false_switches_a_technique_off(tmp_path: Path) -> None:
    path = tmp_path / "slipstream.toml"
    path.write_text("version = 1\n[recipe]\nworkers = false\ntf32 = true\n")
    assert read_recipe(path).recipe == Recipe((Choice("tf32"),))


def test_lines_of_keys() -> None:
    lines = TomlLines('a = 1\n[t] # x\n"a" = 2\n b.c = 3\n')
    assert [lines.line_of("", "a"), lines.line_of("", "t"), lines.line_of("t", "a")] == [1, 2, 3]
    assert lines.line_of("t", "b") == 4 and lines.line_of("t", "z") is None


def _machine(tmp_path: Path, cpu: str = "made", gpus: tuple[str, ...] = ()) -> Path:
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(f"processor : 0\nmodel name\t: {cpu}\n")
    for number, name in enumerate(gpus):
        folder = root / f"proc/driver/nvidia/gpus/{number}"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {name}\nIRQ: 7\n")
    return root


def _now(written: Path, **machine: Any) -> Any:
    """Returns the recipe file as if it had been measured on this machine, except for the given facts."""
    file = read_recipe(written)
    kept = {key: file.machine[key] for key in ("cpu",)}
    return msgspec.structs.replace(file, machine={**kept, **machine})


def test_the_same_script_on_the_same_machine_has_no_differences(written: Path, tmp_path: Path) -> None:
    file = _now(written)
    assert differences(file, file.script, tmp_path, _machine(tmp_path)) == []


def test_changes_of_the_script_are_reported(written: Path, tmp_path: Path) -> None:
    file, root = _now(written), _machine(tmp_path)
    assert differences(file, ["other.py"], tmp_path, root) == [
        "The recipe was measured on train.py, and this is other.py."
    ]
    (tmp_path / "train.py").write_text("print('changed')\n")
    assert differences(file, ["train.py", "--epochs", "2"], tmp_path, root) == [
        "train.py has changed since the recipe was measured.",
        'The recipe was measured with other arguments: --name a "b" \\ ü.',
    ]


def test_a_script_that_had_no_arguments_is_reported(written: Path, tmp_path: Path) -> None:
    file = msgspec.structs.replace(_now(written), script=["train.py"], script_digest="")
    assert differences(file, ["train.py", "--epochs", "2"], tmp_path, _machine(tmp_path)) == [
        "The recipe was measured without arguments."
    ]


def test_changes_of_the_machine_are_reported(written: Path, tmp_path: Path) -> None:
    root = _machine(tmp_path, cpu="another", gpus=("NVIDIA A100",))
    file = _now(written, cores=1000.0, torch="1.0.0+cu99", python="2.7.1", gpus="NVIDIA T4")
    sentences = " ".join(differences(file, file.script, tmp_path, root))
    for what in ("another processor: made", "1000 cores", "other GPUs: NVIDIA T4", "torch 1.0.0+cu99", "Python 2.7.1"):
        assert what in sentences


def test_builds_of_one_release_are_the_same_torch(written: Path, tmp_path: Path) -> None:
    file = _now(written, torch=metadata.version("torch").partition("+")[0] + "+other")
    assert differences(file, file.script, tmp_path, _machine(tmp_path)) == []


def test_reading_a_recipe_imports_nothing_slow(written: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from slipstream.recipe.file import differences, read_recipe\n"
        f"file = read_recipe(Path({str(written)!r})); differences(file, file.script)\n"
        "print([name for name in ('torch', 'rich', 'scipy', 'psutil', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
