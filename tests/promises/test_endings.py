"""However a check ends, it saves its session, reports what it measured, and leaves no process and no file behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import SLIPSTREAM, start

from slipstream.testing.zoo import HERE

MARK = "SLIPSTREAM_TEST_RUN"  # every process of a check inherits it, so that one that was left behind is found
WORKERS = HERE / "healthy_convnet.py"
PLACES = [Path("/dev/shm"), Path("/var/tmp")]


class RunningCheck:
    """A running check, and the shared files that existed before it."""

    def __init__(self, folder: Path, script: Path, *arguments: str, seconds: float = 30.0) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.before = _shared_files()
        command = [*SLIPSTREAM, "check", "--seconds", str(seconds), "--json", "out.json", str(script), *arguments]
        self.process: subprocess.Popen[str] = start(command, folder, OMP_WAIT_POLICY="PASSIVE", **{MARK: self.mark})
        self.out = ""

    def wait_for(self, text: str) -> None:
        """Wait until the script has printed this text, which shows that it is in its training loop."""
        assert self.process.stdout is not None
        while text not in self.out:
            line = self.process.stdout.readline()
            assert line, f"{text!r} was never printed: {self.out} {self.process.communicate()[1]}"
            self.out += line

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _environment(process).get(MARK) == self.mark]

    def workers(self) -> list[psutil.Process]:
        """The leaves of the process tree: processes of the check that have no children."""
        return [process for process in self.processes() if process.pid != self.process.pid and not process.children()]

    def finish(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=100)
        self.out += out + err
        assert list((self.folder / ".slipstream").rglob("*.msgpack")), self.out
        document: dict[str, Any] = json.loads((self.folder / "out.json").read_text())
        self.assert_nothing_is_left()
        return document

    def assert_nothing_is_left(self) -> None:
        deadline = time.monotonic() + 10
        while (self.processes() or _shared_files() - self.before) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not self.processes()
        assert not _shared_files() - self.before
        assert not list((self.folder / "tmp").iterdir())


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        found: dict[str, str] = process.environ()
    except (psutil.Error, OSError):
        return {}
    return found


def _shared_files() -> set[str]:
    """Files in shared folders, without those of other running processes, because other tests may train too.

    The names of torch's files contain the process id.
    """
    names = ("torch_", "slipstream", "sem.mp")
    found = {path for place in PLACES for path in place.glob("*") if path.name.startswith(names)}
    return {str(path) for path in found if not _is_in_use(path.name.split("_"))}


def _is_in_use(parts: list[str]) -> bool:
    return len(parts) > 1 and parts[1].isdigit() and psutil.pid_exists(int(parts[1]))


@pytest.fixture
def checks(tmp_path: Path) -> Iterator[list[RunningCheck]]:
    """Collects the checks of a test, and ends those that a failed test left running."""
    started: list[RunningCheck] = []
    yield started
    for check in started:
        if check.process.poll() is None:
            os.killpg(check.process.pid, signal.SIGKILL)
            check.process.wait()


def test_interrupted(tmp_path: Path, checks: list[RunningCheck]) -> None:
    check = RunningCheck(tmp_path, WORKERS)
    checks.append(check)
    check.wait_for("step 40 ")
    os.killpg(check.process.pid, signal.SIGINT)  # a terminal sends it to the whole group too
    document = check.finish()
    assert document["ending"]["reason"] == "interrupted"
    assert document["step_ms"] is not None
    assert check.process.returncode == 130
    assert "Traceback" not in check.out.partition("KeyboardInterrupt")[0] or not re.search(
        r"src/slipstream/(?!testing/zoo)", check.out
    )


def test_interrupted_before_the_first_step(tmp_path: Path, checks: list[RunningCheck]) -> None:
    script = tmp_path / "slow_start.py"
    script.write_text("import time\nprint('waiting', flush=True)\ntime.sleep(60)\n")
    check = RunningCheck(tmp_path, script)
    checks.append(check)
    check.wait_for("waiting")
    os.killpg(check.process.pid, signal.SIGINT)
    document = check.finish()
    assert document["ending"]["reason"] == "interrupted"
    assert document["step_ms"] is None


def test_exception_in_the_script(tmp_path: Path, checks: list[RunningCheck]) -> None:
    check = RunningCheck(tmp_path, HERE / "odd_raises.py", "--steps", "40")
    checks.append(check)
    document = check.finish()
    assert check.process.returncode == 1
    assert document["ending"]["reason"] == "raised"
    assert "mat1 and mat2" in document["ending"]["message"]
    assert document["step_ms"] is not None


def test_killed_worker(tmp_path: Path, checks: list[RunningCheck]) -> None:
    check = RunningCheck(tmp_path, WORKERS)
    checks.append(check)
    check.wait_for("step 20 ")
    check.workers()[-1].kill()
    document = check.finish()
    assert check.process.returncode != 0
    # The message depends on what the worker was doing: if it was sending a tensor, the connection breaks.
    words = ("exited unexpectedly", "killed by signal", "EOFError", "ConnectionResetError")
    assert any(word in check.out for word in words)
    assert document["ending"]["reason"] == "raised"
    assert document["step_ms"] is not None


def test_killed_trial(tmp_path: Path, checks: list[RunningCheck]) -> None:
    check = RunningCheck(tmp_path, HERE / "healthy_mlp.py")
    checks.append(check)
    check.wait_for("step 40 ")
    check.workers()[-1].kill()  # without workers the trial is the only leaf
    document = check.finish()
    assert document["ending"]["reason"] == "killed"
    assert check.process.returncode == 137


def test_a_script_that_ends_before_the_check(tmp_path: Path, checks: list[RunningCheck]) -> None:
    check = RunningCheck(tmp_path, HERE / "odd_by_hand.py", "--steps", "8")
    checks.append(check)
    document = check.finish()
    assert check.process.returncode == 0
    assert document["ending"]["reason"] == "finished"
    assert document["step_ms"] is not None
    assert document["notes"], "the notes say what the numbers are based on"


def test_files_of_the_script_are_discarded(tmp_path: Path, checks: list[RunningCheck]) -> None:
    script = tmp_path / "writes.py"
    source = (HERE / "odd_by_hand.py").read_text()
    script.write_text(source + "\nassert torch.load(args.save)\nprint('read back')\n")
    check = RunningCheck(tmp_path, script, "--steps", "8", "--save", "weights.pt")
    checks.append(check)
    document = check.finish()
    assert "read back" in check.out
    assert not (tmp_path / "weights.pt").exists()
    assert "weights.pt" in document["written"]
