"""A function becomes a script that a new process can run. Other functions are refused with the reason."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.workflows.function_script import write_script

MODULE = """
def train(*args, **kwargs):
    print("trained", args, kwargs)

class Trainer:
    def fit(self):
        pass

def outer():
    def inner():
        pass
    return inner
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "face_training.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import face_training  # type: ignore[import-not-found]

    yield face_training
    del sys.modules["face_training"]


def run(script: Path) -> str:
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd="/").stdout


def test_a_function_of_a_module_is_imported(module: Any, tmp_path: Path) -> None:
    script = write_script(functools.partial(module.train, 3, rate={"a": 0.5}), tmp_path / "functions")
    assert script == tmp_path / "functions/train.py"
    assert run(script) == "trained (3,) {'rate': {'a': 0.5}}\n"


@pytest.mark.parametrize(
    ("choose", "words"),
    [
        (lambda module: module.Trainer().fit, "a method of an object"),
        (lambda module: module.outer(), "cannot be found by name"),
        (lambda module: lambda: None, "cannot be found by name"),
        (lambda module: functools.partial(module.train, lambda: None), "Create them in the function"),
        (lambda module: 3, "cannot be found by name"),
    ],
)
def test_a_function_that_another_process_cannot_find_is_refused(
    module: Any, tmp_path: Path, choose: Callable[[Any], Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        write_script(choose(module), tmp_path)


def test_a_function_of_a_program_and_of_an_interactive_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "my-program.py"
    program.write_text(
        "from pathlib import Path\n"
        "from slipstream.workflows.function_script import write_script\n"
        "def train():\n    print('trained in', __name__)\n"
        "if __name__ == '__main__':\n    print(write_script(train, Path('functions')))\n"
    )
    path = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert run(tmp_path / path.strip()) == "trained in my-program\n"
    typed = subprocess.run(
        [sys.executable, "-c", program.read_text()], capture_output=True, text=True, cwd=tmp_path
    ).stderr
    assert "was typed into an interpreter" in typed


def test_a_function_of_a_notebook_is_rebuilt_from_its_cells(tmp_path: Path) -> None:
    cells = [
        "import pathlib, slipstream.workflows.function_script as f",
        "%precision 3",
        "%%time\ngreeting = 'hello'",
        "def train(): print(greeting, __name__)",
        "print(f.write_script(train, pathlib.Path('functions')))",
    ]
    shell = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        f"for cell in {cells!r}: shell.run_cell(cell, store_history=True).raise_error()\n"
    )
    done = subprocess.run([sys.executable, "-c", shell], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert run(tmp_path / done.stdout.strip().splitlines()[-1]) == "hello __main__\n"
