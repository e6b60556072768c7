"""Commands are killed at many moments. After ten seconds no process, folder, mount or shared memory is left. One moment
of each kind is tried; SLIPSTREAM_EVERY=1 (`make promises`) tries 30."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slipstream.sandbox.uncovered_places import UncoveredPlaces
from slipstream.trial.forked import READY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")

TRAIN = """
import subprocess, sys
import torch
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("many", flush=True)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.ones(40_000, 8))
while True:
    for (x,) in torch.utils.data.DataLoader(data, batch_size=32, num_workers=1):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""
_LEFT_S = 10.0
_LAST_S = 22.0  # moments are up to this many seconds after the start: the check, the races, the proof, the end


class Command:
    """A command in a folder of its own, with a variable that all its processes inherit."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="kill-"))  # short, because sockets of workers are in it
        self._places = UncoveredPlaces()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slipstream", *arguments],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self._scratch)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def processes(self) -> list[psutil.Process]:
        variable = f"TMPDIR={self._scratch}".encode()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if variable in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    found.append(process)
        return found

    def left(self) -> list[str]:
        """What is left of it."""
        left = [f"{process}" for process in self.processes()]
        left += [str(path) for path in self._scratch.iterdir() if path.name.startswith(("slipstream", "torch-shm"))]
        left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self._scratch) in line]
        return left + [path for path in self._places.new_files() if not is_open(path)]

    def assert_nothing_is_left(self) -> None:
        deadline_s = time.monotonic() + _LEFT_S
        while (left := self.left()) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        assert not left
        shutil.rmtree(self._scratch)


def is_open(path: str) -> bool:
    """Whether a process has the file mapped. Then it belongs to another test."""
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if path in Path(f"/proc/{process.pid}/maps").read_text():
                return True
    return False


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def tune(here: Path) -> Command:
    techniques = ["--only", "fused_optimizer,set_to_none"]
    return Command(here, "tune", "--seconds", "6", "--budget", "12s", *techniques, "train.py")


def test_a_session_of_its_own_does_not_outlive_a_killed_check(here: Path) -> None:
    check = Command(here, "check", "--seconds", "60", "train.py")
    assert check.process.stdout is not None
    while check.process.stdout.readline().strip() != "many":
        assert check.process.poll() is None
    check.process.kill()
    check.process.communicate(timeout=60)
    check.assert_nothing_is_left()


KINDS = ("kill", "kill_trial", "kill_server", "term", "hup", "interrupt", "interrupt_twice")
MOMENTS = [(kind, 9.0) for kind in ("kill", "term")]
if os.environ.get("SLIPSTREAM_EVERY"):
    _draw = random.Random(24)
    MOMENTS = [(KINDS[number % len(KINDS)], round(_draw.uniform(0.1, _LAST_S), 2)) for number in range(30)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "moment_s"), MOMENTS)
def test_nothing_is_left_of_a_tuning(here: Path, kind: str, moment_s: float) -> None:
    command = tune(here)
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.process.wait(moment_s)
    act(command, kind)
    out, _ = command.process.communicate(timeout=200)
    assert "/slipstream/" not in out, out  # a traceback of the script's own is shown, without our frames
    command.assert_nothing_is_left()


def act(command: Command, kind: str) -> None:
    numbers = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP}
    if kind in numbers:
        command.process.send_signal(numbers[kind])
    elif kind.startswith("interrupt"):
        for _ in range(2 if kind == "interrupt_twice" else 1):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.process.pid, signal.SIGINT)  # a terminal sends it to the whole group
            time.sleep(0.5)
    else:
        for process in victims(command, is_server=kind == "kill_server"):
            with contextlib.suppress(psutil.Error):
                process.kill()


def victims(command: Command, *, is_server: bool) -> Iterator[psutil.Process]:
    for process in command.processes():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if process.pid != command.process.pid and "__main__.py" in line and (READY in line) == is_server:
                yield process


@pytest.mark.timeout(300)
def test_two_tunings_in_one_folder(here: Path) -> None:
    first, second = tune(here), tune(here)
    time.sleep(9.0)
    first.process.kill()
    first.process.communicate(timeout=60)
    first.assert_nothing_is_left()
    out, _ = second.process.communicate(timeout=200)
    assert second.process.returncode == 0, out
    second.assert_nothing_is_left()
