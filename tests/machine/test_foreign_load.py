"""The measured load of other programs, with synthetic counters and with a real program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.machine.foreign_load import LEAST_S, ForeignLoad, LoadSampler, process_cpu_s

OWN, WORKER, OTHER = 10, 11, 12


class MadeMachine:
    """Counters in the form of /proc, and a clock. Each core has the ticks of its states: user first, idle fourth."""

    def __init__(self, proc: Path, num_cores: int) -> None:
        self.proc, self.now_s, self.used_s = proc, 100.0, {OWN: 5.0, WORKER: 1.0}
        self._idle = [4000] * num_cores
        self._waited_s = dict.fromkeys(self.used_s, 0.0)
        self.run(0.0, [0.0] * num_cores, {})

    def run(self, seconds: float, idle_s: list[float], own_s: dict[int, float]) -> None:
        self.now_s += seconds
        self._idle = [ticks + round(100 * idle) for ticks, idle in zip(self._idle, idle_s, strict=True)]
        lines = [f"cpu{core} 700 0 100 {idle} 50 0 0 3 0 0" for core, idle in enumerate(self._idle)]
        (self.proc / "stat").write_text("\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "intr 99 1 2"]) + "\n")
        for pid, used_s in own_s.items():
            self.used_s[pid] += used_s
        for pid, waited_s in self._waited_s.items():
            (self.proc / str(pid)).mkdir(exist_ok=True)
            children = f"{round(100 * waited_s)} 0"
            (self.proc / str(pid) / "stat").write_text(f"{pid} (a) name) S 1 1 1 0 -1 0 0 0 0 0 7 7 {children} 20 0")

    def end_worker(self) -> None:
        (self.proc / str(WORKER) / "stat").unlink()
        self._waited_s = {OWN: self.used_s.pop(WORKER)}

    def cpu_s(self, pid: int) -> float:
        if pid not in self.used_s:
            raise ProcessLookupError(pid)
        return self.used_s[pid]

    def load(self, cores: range, quota: float | None = None, nvml: Any = None) -> ForeignLoad:
        return ForeignLoad(self.proc, cores, quota, nvml, self.cpu_s, lambda: self.now_s)


def test_busy_time_that_is_not_ours_is_of_others(tmp_path: Path) -> None:
    machine = MadeMachine(tmp_path, 2)
    load = machine.load(range(2))
    load.begin([OWN, WORKER])
    machine.run(1.0, [0.25, 0.5], {OWN: 0.25, WORKER: 0.5})
    assert load.end([OWN, WORKER]) == pytest.approx(0.5)
    machine.run(2.0, [2.0, 0.0], {OWN: 1.5})  # the end of one measurement is the beginning of the next
    assert load.end([OWN, WORKER]) == pytest.approx(0.25)
    machine.run(1.0, [0.0, 0.0], {OWN: 2.02})
    assert load.end([OWN, WORKER]) == 0.0, "not less than nothing, whatever the ticks say"


def test_a_process_that_ends_takes_no_time_with_it(tmp_path: Path) -> None:
    machine = MadeMachine(tmp_path, 2)
    load = machine.load(range(2))
    load.begin([OWN, WORKER])
    machine.used_s[WORKER] += 0.5
    machine.end_worker()
    machine.run(1.0, [0.5, 0.5], {OWN: 0.25})
    assert load.end([OWN]) == pytest.approx(0.25)


def test_a_process_that_starts_counts_from_its_start(tmp_path: Path) -> None:
    machine = MadeMachine(tmp_path, 2)
    load = machine.load(range(2))
    machine.used_s[WORKER] = 0.0
    load.begin([OWN])
    machine.run(1.0, [0.5, 0.5], {WORKER: 0.75})
    assert load.end([OWN, WORKER]) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("cores", "quota", "idle_s", "foreign"),
    [
        (range(2), None, [0.0, 1.0, 0.0, 0.0], 0.5),  # load on cores that we may not use does not count
        (range(4), 2.0, [0.5, 0.5, 1.0, 1.0], 0.0),  # with a quota of two of four cores, others may use two cores
        (range(4), 2.0, [0.0, 0.5, 0.0, 0.0], 1.0),
        (range(4), 9.0, [1.0, 1.0, 1.0, 0.0], 0.5),
    ],
)
def test_only_cores_that_we_could_use_count(
    tmp_path: Path, cores: range, quota: float | None, idle_s: list[float], foreign: float
) -> None:
    machine = MadeMachine(tmp_path, 4)
    load = machine.load(cores, quota)
    load.begin([OWN])
    machine.run(1.0, idle_s, {OWN: 0.5})
    assert load.end([OWN]) == pytest.approx(foreign)
    assert load.num_usable == min(len(cores), quota or len(cores))


def test_what_cannot_be_measured_is_unknown(tmp_path: Path) -> None:
    machine = MadeMachine(tmp_path, 2)
    load = machine.load(range(2))
    assert load.end([OWN]) is None, "it did not begin"
    machine.run(LEAST_S / 2, [0.0, 0.0], {})
    assert load.end([OWN]) is None, "too short for counters of 10 ms"
    machine.run(1.0, [0.0, 0.0], {})
    assert load.end([OWN]) == 2.0
    for text in ("", "cpu 0 0 0 0\ncpu0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0\n", "cpu0 1 2\n", "cpu0 a b c d e\n"):
        (tmp_path / "stat").write_text(text)
        machine.now_s += 1.0
        assert load.end([OWN]) is None
    (tmp_path / "stat").unlink()
    machine.now_s += 1.0
    assert load.end([OWN]) is None
    machine.run(1.0, [0.0, 0.0], {})
    assert load.end([OWN]) is None, "there is no reading from before"


class MadeNvml:
    """Device 0 is ours and shared with another process; device 1 belongs to others."""

    def __init__(self, share_percent: int, own: int = WORKER) -> None:
        self.share_percent, self.own = share_percent, own

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=OTHER), *([SimpleNamespace(pid=self.own)] if not handle else [])]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since_us: int) -> list[Any]:  # noqa: N802
        if not self.share_percent:
            raise RuntimeError("Not Found")
        seen = [(OTHER, self.share_percent - 10), (OTHER, self.share_percent + 10), (self.own, 60)]
        return [SimpleNamespace(pid=pid, smUtil=percent) for pid, percent in seen]


@pytest.mark.parametrize(
    ("nvml", "foreign"),
    [
        (MadeNvml(30), 1.2),  # 30% of the device counts as 30% of four cores
        (MadeNvml(0), 1.0),
        (MadeNvml(20), 1.0),  # the cores are busier
        (MadeNvml(30, own=99), 1.0),  # no device is ours
    ],
)
def test_others_on_our_gpu_count_as_a_share_of_our_cores(tmp_path: Path, nvml: MadeNvml, foreign: float) -> None:
    machine = MadeMachine(tmp_path, 4)
    load = machine.load(range(4), nvml=nvml)
    load.begin([OWN, WORKER])
    load.begin([OWN])  # the worker is paused now, and is still ours
    machine.run(1.0, [1.0, 1.0, 0.5, 0.0], {OWN: 0.5})
    assert load.end([OWN]) == pytest.approx(foreign)


def test_samples_follow_each_other(tmp_path: Path) -> None:
    machine = MadeMachine(tmp_path, 2)
    sampler = LoadSampler(machine.load(range(2)), lambda: [OWN])
    while len(sampler.samples) < 3:
        machine.run(0.3, [0.0, 0.3], {})
        sampler.look()
        time.sleep(0.01)
    first, second, third = sampler.samples
    assert first.start_ns < first.end_ns == second.start_ns < second.end_ns == third.start_ns
    assert all(sample.cores > 0 for sample in sampler.samples)


# A program that computes and that another program started: its parent has ended and its session is its own.
STRANGER = """
import os
if not os.fork():
    os.setsid()
    if pid := os.fork():
        print(pid, flush=True)
        os._exit(0)
    os.close(1)
    while True:
        pass
os.wait()
"""


@pytest.fixture
def stranger() -> Iterator[int]:
    done = subprocess.run([sys.executable, "-c", STRANGER], stdout=subprocess.PIPE, text=True, check=True)
    pid = int(done.stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_real_program(stranger: int) -> None:
    loads = {(os.getpid(),): ForeignLoad(), (os.getpid(), stranger): ForeignLoad()}
    for own, load in loads.items():
        load.begin(own)
    before_s = process_cpu_s(stranger)
    while process_cpu_s(stranger) < before_s + 1.0:  # however busy the machine is
        time.sleep(0.05)
    foreign, foreign_without = (load.end(own) for own, load in loads.items())
    if foreign is None:
        pytest.skip("this system does not tell")
    assert foreign > 0.5
    assert foreign_without is not None and foreign_without < foreign
