"""Other systems than Linux: reading commands work, and commands that run a training say in one sentence that they do
not. `sys.platform` is patched, and for Windows the modules that only POSIX systems have
cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.diagnose import diagnose
from slipstream.store.sessions import save_session
from slipstream.testing.made_sessions import made_session

PRELUDE = """
import asyncio, ctypes, importlib.metadata, multiprocessing, pathlib, shutil, socket, sqlite3, subprocess, tempfile
import click, jinja2, libcst, msgspec, numpy, psutil, rich.console, rich.text, rich.progress
import os, sys

POSIX_ONLY = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"} if PLATFORM == "win32" else set()

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX_ONLY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in POSIX_ONLY:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
sys.platform = PLATFORM
for name in ("sched_getaffinity", "sched_setaffinity", "fork", "geteuid", "mkfifo", "waitid", "setpgid"):
    if hasattr(os, name) and PLATFORM == "win32":
        delattr(os, name)
from slipstream.cli import main
sys.argv[0] = "slipstream"
main()
"""


def run(folder: Path, platform: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"PLATFORM = {platform!r}\n{PRELUDE}"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trained')\n")
    for _ in range(2):
        save_session(diagnose(made_session()), tmp_path)
    return tmp_path


@pytest.mark.parametrize("platform", ["darwin", "win32"])
@pytest.mark.parametrize("command", [["check"], ["tune"], ["memory"], ["tune", "--fit"], ["selftest"]])
def test_commands_that_run_a_training_refuse_in_one_sentence(project: Path, platform: str, command: list[str]) -> None:
    done = run(project, platform, *command, *([] if command == ["selftest"] else ["train.py"]))
    assert done.returncode == 2 and "runs on Linux only" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "trained" not in done.stdout


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_run_is_plain_python(project: Path, platform: str) -> None:
    done = run(project, platform, "run", "train.py")
    assert done.returncode == 0 and done.stdout == "trained\n", done.stderr
    assert done.stderr.strip().splitlines() == [
        "slipstream: recipes are applied on Linux only. The script runs as plain Python."
    ]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
@pytest.mark.parametrize("command", ["report", "history", "compare", "patch", "techniques", "--help"])
def test_commands_that_read_sessions_work(project: Path, platform: str, command: str) -> None:
    sessions = sorted(path.stem for path in (project / ".slipstream" / "sessions").glob("*.msgpack"))
    arguments = {"compare": sessions, "patch": ["train.py"]}.get(command, [])
    done = run(project, platform, command, *arguments)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0 or command == "patch", done.stderr
    assert done.stdout.strip() or command == "patch"
