"""However a check ends, its session is saved, the report says what it rests on, and nothing of ours is left behind."""

from __future__ import annotations

import json
import os
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

MARK = "SLIPSTREAM_TEST_RIDE"  # inherited by every process of a ride, so that a left one is found
WORKERS = HERE / "healthy_convnet.py"
PLACES = [Path("/dev/shm"), Path("/var/tmp")]


class Ride:
    """A check under way, and what was there before it."""

    def __init__(self, folder: Path, script: Path, *arguments: str, seconds: float = 30.0) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.before = _shared_files()
        command = [*SLIPSTREAM, "check", "--seconds", str(seconds), "--json", "out.json", str(script), *arguments]
        self.process: subprocess.Popen[str] = start(command, folder, OMP_WAIT_POLICY="PASSIVE", **{MARK: self.mark})
        self.out = ""

    def wait_for(self, text: str) -> None:
        """Until the script has printed this: it is in its loop then."""
        assert self.process.stdout is not None
        while text not in self.out:
            line = self.process.stdout.readline()
            assert line, f"{text!r} was never printed: {self.out} {self.process.communicate()[1]}"
            self.out += line

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _environment(process).get(MARK) == self.mark]

    def workers(self) -> list[psutil.Process]:
        """Leaves of the tree: processes without children that share the rider's command line."""
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
    """Without those of neighbours at work: the other half of the tests trains too. Torch's name their process."""
    names = ("torch_", "slipstream", "sem.mp")
    found = {path for place in PLACES for path in place.glob("*") if path.name.startswith(names)}
    return {str(path) for path in found if not _is_at_work(path.name.split("_"))}


def _is_at_work(parts: list[str]) -> bool:
    return len(parts) > 1 and parts[1].isdigit() and psutil.pid_exists(int(parts[1]))


@pytest.fixture
def rides(tmp_path: Path) -> Iterator[list[Ride]]:
    """Ends what a failed test left running."""
    started: list[Ride] = []
    yield started
    for ride in started:
        if ride.process.poll() is None:
            os.killpg(ride.process.pid, signal.SIGKILL)
            ride.process.wait()


def test_interrupted(tmp_path: Path, rides: list[Ride]) -> None:
    ride = Ride(tmp_path, WORKERS)
    rides.append(ride)
    ride.wait_for("step 40 ")
    os.killpg(ride.process.pid, signal.SIGINT)  # as a terminal does it: to everyone
    document = ride.finish()
    assert document["ending"]["reason"] == "interrupted"
    assert document["step_ms"] is not None
    assert ride.process.returncode == 130
    assert "Traceback" not in ride.out.partition("KeyboardInterrupt")[0] or "src/slipstream" not in ride.out


def test_interrupted_before_the_first_step(tmp_path: Path, rides: list[Ride]) -> None:
    script = tmp_path / "slow_start.py"
    script.write_text("import time\nprint('waiting', flush=True)\ntime.sleep(60)\n")
    ride = Ride(tmp_path, script)
    rides.append(ride)
    ride.wait_for("waiting")
    os.killpg(ride.process.pid, signal.SIGINT)
    document = ride.finish()
    assert document["ending"]["reason"] == "interrupted"
    assert document["step_ms"] is None


def test_exception_in_the_script(tmp_path: Path, rides: list[Ride]) -> None:
    ride = Ride(tmp_path, HERE / "odd_raises.py", "--steps", "40")
    rides.append(ride)
    document = ride.finish()
    assert ride.process.returncode == 1
    assert document["ending"]["reason"] == "raised"
    assert "mat1 and mat2" in document["ending"]["message"]
    assert document["step_ms"] is not None


def test_killed_worker(tmp_path: Path, rides: list[Ride]) -> None:
    ride = Ride(tmp_path, WORKERS)
    rides.append(ride)
    ride.wait_for("step 20 ")
    ride.workers()[-1].kill()
    document = ride.finish()
    assert ride.process.returncode != 0
    # what torch says depends on what the worker was at: while it hands a tensor over, the connection breaks
    words = ("exited unexpectedly", "killed by signal", "EOFError", "ConnectionResetError")
    assert any(word in ride.out for word in words)
    assert document["ending"]["reason"] == "raised"
    assert document["step_ms"] is not None


def test_killed_trial(tmp_path: Path, rides: list[Ride]) -> None:
    ride = Ride(tmp_path, HERE / "healthy_mlp.py")
    rides.append(ride)
    ride.wait_for("step 40 ")
    ride.workers()[-1].kill()  # without workers the rider is the only leaf
    document = ride.finish()
    assert document["ending"]["reason"] == "killed"
    assert ride.process.returncode == 137


def test_shorter_than_asked(tmp_path: Path, rides: list[Ride]) -> None:
    ride = Ride(tmp_path, HERE / "odd_by_hand.py", "--steps", "8")
    rides.append(ride)
    document = ride.finish()
    assert ride.process.returncode == 0
    assert document["ending"]["reason"] == "finished"
    assert document["step_ms"] is not None
    assert document["notes"], "says what the numbers rest on"


def test_files_of_the_script_are_gone(tmp_path: Path, rides: list[Ride]) -> None:
    script = tmp_path / "writes.py"
    source = (HERE / "odd_by_hand.py").read_text()
    script.write_text(source + "\nassert torch.load(args.save)\nprint('read back')\n")
    ride = Ride(tmp_path, script, "--steps", "8", "--save", "weights.pt")
    rides.append(ride)
    document = ride.finish()
    assert "read back" in ride.out
    assert not (tmp_path / "weights.pt").exists()
    assert "weights.pt" in document["written"]
