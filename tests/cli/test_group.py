"""The commands, each run in a new process as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(40):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
print("done")
"""


def slipstream(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slipstream", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_check_report_and_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = slipstream("check", "--html", "--json", "out/result.json", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    [page] = (tmp_path / ".slipstream/sessions").glob("*.html")
    assert "slipstream check --html --json out/result.json train.py" in page.read_text(encoding="utf-8")
    assert (tmp_path / "train.py").read_text() == TRAIN
    assert done.stdout.startswith("done\n") and "slipstream check" in done.stdout
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert {"script", "environment", "step_ms", "phases", "ceilings", "bound", "findings"} <= result.keys()
    assert (tmp_path / ".slipstream/.gitignore").read_text() == "*\n"

    again = slipstream("report", "--json", "-", cwd=tmp_path)
    assert again.returncode == 0
    assert json.loads(again.stdout)["step_ms"] == result["step_ms"], "standard output has only the JSON"


def test_a_script_without_a_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv)")
    done = slipstream("check", "train.py", "--steps", "3", "-m", "--help", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith("['train.py', '--steps', '3', '-m', '--help']\n")
    assert "no module was called" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["check"], "Which script?"),
        (["check", "missing.py"], "There is no file"),
        (["run", "missing.py"], "There is no file"),
        (["check", "."], "directory without a __main__.py"),
        (["check", "-m", "nowhere.train"], "nowhere"),
        (["check", "--steps", "0", "train.py"], "--steps"),
        (["report"], "No session is saved"),
        (["report", "missing.msgpack"], "cannot be read"),
        (["report", "train.py"], "not a session"),
        (["frobnicate"], "No such command"),
    ],
)
def test_bad_input_gives_a_message_and_exit_code_2(tmp_path: Path, args: list[str], words: str) -> None:
    (tmp_path / "train.py").write_text("")
    done = slipstream(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_many_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    refused = slipstream("check", "train.py", cwd=tmp_path, WORLD_SIZE="2")
    assert refused.returncode == 2 and "torchrun" in refused.stderr
    passed = slipstream("run", "train.py", cwd=tmp_path, WORLD_SIZE="2")
    assert (passed.returncode, passed.stdout) == (0, "ran\n")


def test_help_and_version(tmp_path: Path) -> None:
    overview = slipstream("--help", cwd=tmp_path).stdout
    assert "slipstream check train.py" in overview and "SLIPSTREAM_DISABLE" in overview
    assert "Options of slipstream come before the script" in slipstream("check", "--help", cwd=tmp_path).stdout
    assert slipstream("--version", cwd=tmp_path).stdout.startswith("slipstream 0.")


def test_run_imports_nothing_slow_before_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys; print([name for name in ('torch', 'rich', 'scipy', 'psutil', 'numpy') if name in sys.modules])"
    )
    assert slipstream("run", "train.py", cwd=tmp_path).stdout == "[]\n"


def test_a_result_that_cannot_be_saved_is_still_printed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    (tmp_path / ".slipstream").write_text("in the way")
    done = slipstream("check", "--json", "train.py/x.json", "train.py", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "could not be saved" in done.stderr and "slipstream check" in done.stdout
