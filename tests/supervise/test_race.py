"""Races of a tiny script with real processes. Trials start slowly, so that one race answers most questions."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from slipstream.machine.foreign_load import ForeignLoad
from slipstream.records import Choice, Failure, Recipe, TrialSpec
from slipstream.supervise.race import ProcessBackend
from slipstream.supervise.racing_trial import RacingTrial
from slipstream.supervise.trial_log import TrialLog

TRAIN = """
import sys, torch
data = torch.utils.data.TensorDataset(torch.randn(40_000, 8), torch.randn(40_000, 1))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
open("written.txt", "w").write("by a trial")
for x, y in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=int(sys.argv[1])):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
    print("output of the script")
"""

# Replaces techniques/_core/__main__.py. The name of the technique says what goes wrong in the optimizer's step.
ENTRY = """
import os, sys, time
from slipstream.records import Recipe
from slipstream.trial.main import main
from slipstream.techniques._core.apply_recipe import apply_recipe

def apply(recipe, patches, complain, is_proof):
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    num_steps, begun_s = 0, 0.0
    for choice in recipe.choices:
        if choice.technique == "late" or choice.technique == "late_once" and not os.path.exists("started"):
            open("started", "w").close()
            time.sleep(1000)
    def hook(*_):
        nonlocal num_steps, begun_s
        num_steps += 1
        for choice in recipe.choices:
            if choice.technique == "slow": time.sleep(1.5)
            if choice.technique == "raises" and num_steps > 12:
                while time.process_time() < 3.5 + begun_s: pass  # longer than the limit, but it uses CPU
                raise ValueError("of its own")
            begun_s = time.process_time()
            if choice.technique == "hangs" and num_steps > 12: time.sleep(1000)
            while choice.technique == "hangs_in_burst" and os.path.exists("burst"): time.sleep(0.05)
    register_optimizer_step_pre_hook(hook)
    return apply_recipe(Recipe(), patches, complain, is_proof)

main(sys.argv[1], apply)
"""
STEPS, LEAD_IN = 5, 2


def recipe(name: str) -> Recipe:
    return Recipe((Choice(name),))


def workspaces() -> set[Path]:
    return {path for place in (tempfile.gettempdir(), "/dev/shm") for path in Path(place).glob("slipstream-check-*")}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "entry.py").write_text(ENTRY)
    before, processes = workspaces(), set(psutil.Process().children(recursive=True))
    yield tmp_path
    assert not {path for path in workspaces() - before if f"-{os.getpid()}-" in path.name}
    assert not set(psutil.Process().children(recursive=True)) - processes
    assert not (tmp_path / "written.txt").exists()


def states(backend: ProcessBackend, trial: int) -> list[str]:
    return [psutil.Process(pid).status() for pid in backend._processes[trial]._tree.members()]


@pytest.mark.timeout(400)  # seven trials import torch, two at a time
def test_a_race(here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [
        TrialSpec(0, "base"),
        TrialSpec(1, "twin", recipe("nothing")),
        TrialSpec(2, "rounding"),
        TrialSpec(4, "candidate", recipe("raises")),
        TrialSpec(5, "candidate", recipe("hangs")),
        TrialSpec(6, "seed"),
    ]
    with ProcessBackend(["train.py", "0"], entry=str(here / "entry.py"), limit_s=5.0) as backend:
        others_are_stopped = _record_others(backend)
        reasons = [_enter(backend, spec, following) for spec, following in itertools.pairwise(specs)]
        assert others_are_stopped and all(others_are_stopped), "trials that start do not slow the steps of a warm-up"
        assert reasons == [None] * 5
        assert backend.capacity() > 1
        assert list(backend._ahead) == [6], "it was announced and has not entered yet"
        _check_that_holding_ends(backend, monkeypatch)
        for round_ in range(2):
            for trial in (1, 0, 2):
                timing = backend.run_block(trial, round_, STEPS, LEAD_IN)
                assert not backend._ahead, "no trial starts while a block is timed"
                assert (timing.trial, timing.round, timing.num_steps, timing.failure, timing.is_last) == (
                    trial,
                    round_,
                    STEPS,
                    None,
                    False,
                )
                assert timing.first_step == 5 + LEAD_IN + round_ * (STEPS + LEAD_IN)
                assert timing.num_samples == 4 * STEPS and timing.seconds > 0
                assert {state for other in (0, 1, 2) for state in states(backend, other)} == {"stopped"}
        timing = backend.run_block(4, 0, 20, 1)
        assert timing.failure == backend.record(4).failure == Failure("ValueError: of its own") and timing.is_last
        assert (timing.first_step, timing.num_steps) == (12, 0), "the step that it reached"
        assert backend.run_block(4, 1, 20, 1).failure
        timing = backend.run_block(5, 0, 20, 1)
        assert re.fullmatch(r"had not reached a step after \d+ s, and was ended", timing.failure.detail)
        assert "stopped" in states(backend, 0)  # the other trials are not affected
        num_steps = 5 + 2 * (STEPS + LEAD_IN)
        assert len(backend.record(0).fingerprint.losses) > num_steps, "the base ran while the other trial was late"

        base, control, rounding = (backend.leave(trial).fingerprint for trial in (0, 1, 2))
        assert len(control.losses) == num_steps and len(control.snapshots) == 3 and len(control.digests) == 3
        assert (control.losses, control.snapshots) == (base.losses[:num_steps], base.snapshots)
        assert control.digests[0] == base.digests[0]
        assert rounding.digests[0] != base.digests[0]
        assert rounding.losses[0][1] == pytest.approx(base.losses[0][1], rel=1e-4)
        _check_runs_by_restarting(backend, specs[5], base.losses)
    assert "output of the script" not in "".join(capfd.readouterr())


def _record_others(backend: ProcessBackend) -> list[bool]:
    """Records at every step of a warm-up whether the trials that are starting are stopped."""
    seen, judge = list[bool](), backend._is_warm

    def look(log: TrialLog) -> bool:
        for other in backend._ahead.values():
            seen.append({psutil.Process(pid).status() for pid in other._tree.members()} <= {"stopped", "zombie"})
        return judge(log)

    backend._is_warm = look  # type: ignore[method-assign]
    return seen


def _check_that_holding_ends(backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial in its warm-up may wait for a lock that a held trial has. The held trial continues after a while."""
    trial, other = backend._processes[0], backend._ahead[6]
    start_s = other.start_s
    with backend._alone():
        other.hold()
        trial._on_wait()
        assert other.is_held and other.start_s == start_s
        monkeypatch.setattr("slipstream.supervise.race._MOST_HELD_S", 0.0)
        trial._on_wait()
        assert not other.is_held and other.start_s > start_s, "the time that it was held is no part of its start"
    assert "stopped" not in {psutil.Process(pid).status() for pid in other._tree.members()}


def _enter(backend: ProcessBackend, spec: TrialSpec, following: TrialSpec) -> Failure | None:
    """Enters a trial. From the second trial on, the next one is started at the same time."""
    backend.expect(following)
    reason = backend.enter(spec)
    assert list(backend._ahead) == ([] if spec.role == "base" else [following.ident])
    assert not any(process.is_held for process in backend._ahead.values())
    return reason


def _check_runs_by_restarting(backend: ProcessBackend, seed: TrialSpec, losses: list[tuple[int, float]]) -> None:
    """Only one trial fits in memory: the base is started again for its block, and records the same losses as before."""
    backend.capacity = lambda: 1  # type: ignore[method-assign]
    assert backend.enter(seed) is None
    timing = backend.run_block(0, 2, STEPS, LEAD_IN)
    assert (timing.first_step, timing.num_steps, timing.failure) == (5 + LEAD_IN, STEPS, None)
    record = backend.record(0)
    assert record.num_launches == 2 and record.fingerprint.losses == losses
    other = backend.record(6)
    assert not other.failure and len(other.fingerprint.losses) == 5
    assert all(a != b for a, b in zip(other.fingerprint.losses, losses, strict=False))


DRIVE = """
import sys
from slipstream.records import TrialSpec
from slipstream.supervise.race import ProcessBackend
with ProcessBackend(["train.py", "2"], use_overlay=False) as backend:
    assert backend.enter(TrialSpec(0, "base")) is None
    assert backend.run_block(0, 0, 2, 1).num_steps == 2
    print("paused", flush=True)
    sys.stdin.readline()
    print("running", flush=True)
    backend.run_block(0, 1, 10**9, 1)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_backend(here: Path, number: signal.Signals, survivors: Any) -> None:
    (here / "drive.py").write_text(DRIVE)
    command = [sys.executable, "drive.py"]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE)
    assert driver.stdin is not None and driver.stdout is not None
    assert driver.stdout.readline() == "paused\n"
    trials = psutil.Process(driver.pid).children(recursive=True)
    assert len(trials) == 3  # the loader's workers too
    assert {process.status() for process in trials} == {"stopped"}
    if number == signal.SIGINT:  # SIGINT is sent while a block runs, SIGKILL while the trial is paused and stopped
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "running\n"
        time.sleep(0.2)
        driver.send_signal(number)
        assert "KeyboardInterrupt" in driver.communicate(timeout=20)[1]
        assert not [path for path in workspaces() if f"-{driver.pid}-" in path.name]
    else:
        driver.kill()
        driver.communicate(timeout=20)
    assert not survivors(trials)
    (here / "written.txt").unlink()  # a real file, because there is no overlay


BURSTY = """
import os, time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
while True:
    time.sleep(0.5 if os.path.exists("burst") else 0.02)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.timeout(400)  # trials import torch, one after the other
def test_a_slow_trial_gets_a_short_warm_up_and_short_blocks(here: Path) -> None:
    (here / "train.py").write_text(BURSTY)
    with ProcessBackend(["train.py"], entry=str(here / "entry.py")) as backend:
        assert backend.enter(TrialSpec(0, "base")) is None
        assert backend.enter(TrialSpec(1, "candidate", recipe("slow"))) is None
        assert [len(backend.record(trial).fingerprint.losses) for trial in (0, 1)] == [5, 3]
        assert len(backend.record(1).fingerprint.snapshots) == 3
        timing = backend.run_block(1, 0, 8, 1, limit_s=2.0)
        assert (timing.first_step, timing.num_steps) == (4, 1), "the limit passes in the first timed step"
        timing = backend.run_block(1, 1, 8, 4, limit_s=0.5)
        assert (timing.first_step, timing.num_steps) == (5, 1), "no lead-in where one step is longer than the limit"
        assert timing.seconds > 1.4 and not timing.is_disturbed
        if ForeignLoad().num_usable and Path("/proc/stat").exists():
            assert timing.foreign_cores is not None and timing.foreign_cores >= 0.0
            cores = backend.wait(0.2)
            assert cores is not None and cores >= 0.0
        timing = backend.run_block(0, 0, 8, 1, limit_s=60.0)
        assert (timing.first_step, timing.num_steps) == (6, 8)


@pytest.mark.timeout(400)  # trials import torch, one after the other
def test_a_trial_that_hangs_while_the_base_does_too_is_not_ended(here: Path) -> None:
    """While the file exists, the candidate hangs and every step of the base takes 25 times as long."""
    (here / "train.py").write_text(BURSTY)
    burst = here / "burst"
    with ProcessBackend(["train.py"], entry=str(here / "entry.py"), use_overlay=False, limit_s=2.0) as backend:
        assert backend.enter(TrialSpec(0, "base")) is None
        assert backend.enter(TrialSpec(1, "candidate", recipe("hangs_in_burst"))) is None
        answers, ask = list[bool](), backend._is_machine_fast

        def look(process: RacingTrial) -> bool:
            answers.append(ask(process))
            if len(answers) == 3:
                burst.unlink()
            return answers[-1]

        backend._is_machine_fast = look  # type: ignore[method-assign]
        burst.touch()
        timing = backend.run_block(1, 0, STEPS, LEAD_IN)
        assert answers == [False] * 3
        assert (timing.num_steps, timing.failure, timing.is_disturbed) == (STEPS, None, True)
        assert not backend.run_block(1, 1, STEPS, LEAD_IN).is_disturbed


@pytest.mark.timeout(400)  # trials import torch, one after the other
def test_a_start_that_hangs_is_repeated_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "train.py").write_text(BURSTY)
    monkeypatch.setattr("slipstream.supervise.race._START_FACTOR", 0)
    with ProcessBackend(["train.py"], entry=str(here / "entry.py"), use_overlay=False, limit_s=4.0) as backend:
        assert backend.enter(TrialSpec(0, "base")) is None
        assert backend.enter(TrialSpec(1, "candidate", recipe("late_once"))) is None
        assert backend.leave(1).num_launches == 1
        failure = backend.enter(TrialSpec(2, "candidate", recipe("late")))
        assert failure is not None and "had not reached a step" in failure.detail
        assert backend.run_block(0, 0, STEPS, LEAD_IN).num_steps == STEPS
