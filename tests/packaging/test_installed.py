"""Every command, with the wheel and its declared dependencies: no test extra, no source tree."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from installation import ROOT, Done, Installation, Measured

from slipstream.cli.group import COMMANDS

pytestmark = pytest.mark.timeout(900)  # commands have their own limit; the machine may be busy

MEASURED = ("check", "tune")  # by the fixture
OTHERS = {
    "run": ["--recipe", "recipe.toml", "train.py"],
    "memory": ["train.py"],
    "patch": ["--recipe", "recipe.toml", "train.py"],
    "report": ["--no-open", "--html", "page.html", "--json", "report.json", "--trace", "trace.json"],
    "history": [],
    "compare": [],
    "machine": ["--quick"],
    "techniques": [],
    "cache": [],
    "selftest": ["--only", "seams"],
}
FIT = ["tune", "--fit", "--budget", "1s", "train.py"]


def test_every_command_is_here() -> None:
    assert {*MEASURED, *OTHERS} == set(COMMANDS)


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    folder = ROOT / "src"
    files = [path.relative_to(folder).as_posix() for path in (folder / "slipstream").rglob("*") if path.is_file()]
    with zipfile.ZipFile(wheel) as archive:
        assert {file for file in files if "__pycache__" not in file} <= set(archive.namelist())


def test_the_environment_has_no_extra(installed: Installation) -> None:
    """Otherwise the other tests prove nothing."""
    done = installed.run_python("-c", "import slipstream; print(slipstream.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(installed.python.parents[1])
    for module in ("pytest", "PIL", "pandas", "pynvml"):
        assert "ModuleNotFoundError" in installed.run_python("-c", f"import {module}").stderr


def assert_went_well(done: Done) -> None:
    """A module that is missing in the script's process switches a seam off, which is a note and not an error."""
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "Traceback" not in output and "was switched off" not in output


@pytest.mark.parametrize("command", MEASURED)
def test_measuring(measured: Measured, command: str) -> None:
    assert_went_well(getattr(measured, command))


@pytest.mark.parametrize("command", [command for command in OTHERS if command != "memory"])
def test_command(installed: Installation, measured: Measured, command: str) -> None:
    assert_went_well(installed.slipstream(command, *OTHERS[command]))


@pytest.mark.parametrize("arguments", [["memory", *OTHERS["memory"]], FIT], ids=["memory", "fit"])
def test_memory(installed: Installation, arguments: list[str], tmp_path: Path) -> None:
    """Runs in a separate folder, because other tests read the latest session of the project."""
    shutil.copy(installed.folder / "train.py", tmp_path)
    assert_went_well(installed.slipstream(*arguments, folder=tmp_path))


def test_demo_without_pillow(installed: Installation) -> None:
    done = installed.run_python("-m", "slipstream.testing.demo", "write", "demo")
    assert done.returncode == 2
    assert "pip install pillow" in done.stdout + done.stderr and "Traceback" not in done.stderr
