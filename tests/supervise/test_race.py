"""Races of a tiny script with real processes. Riders start slowly, so that one heat serves most of the questions."""

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

import psutil
import pytest

from slipstream.records import Choice, Entrant, Recipe
from slipstream.supervise.race import Relay
from slipstream.supervise.slow_start import STEPS_BESIDE, SlowStart
from slipstream.supervise.trial_process import Lane, Ledger
from slipstream.wire.backend import SLOWER

TRAIN = """
import sys, torch
data = torch.utils.data.TensorDataset(torch.randn(40_000, 8), torch.randn(40_000, 1))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
open("written.txt", "w").write("by a rider")
for x, y in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=int(sys.argv[1])):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
    print("noise of the script's own")
"""

# Stands in for techniques/_core/__main__.py: the recipe names what goes wrong in the optimizer's step
ENTRY = """
import sys, time
from slipstream.records import Recipe
from slipstream.trial.main import main
from slipstream.techniques import outfit

def fit(recipe, patches, complain, is_proof):
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    num_steps, begun_s = 0, 0.0
    def hook(*_):
        nonlocal num_steps, begun_s
        num_steps += 1
        for choice in recipe.choices:
            if choice.technique == "slow": time.sleep(0.25)
            if choice.technique == "raises" and num_steps > 12:
                while time.process_time() < 3.5 + begun_s: pass  # longer than the limit, but it computes
                raise ValueError("of its own")
            begun_s = time.process_time()
            if choice.technique == "hangs" and num_steps > 12: time.sleep(1000)
    register_optimizer_step_pre_hook(hook)
    return outfit.fit(Recipe(), patches, complain, is_proof)

main(sys.argv[1], fit)
"""
STEPS, LEAD_IN = 5, 2


def recipe(name: str) -> Recipe:
    return Recipe((Choice(name),))


def rooms() -> set[Path]:
    return {path for place in (tempfile.gettempdir(), "/dev/shm") for path in Path(place).glob("slipstream-check-*")}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "entry.py").write_text(ENTRY)
    before, processes = rooms(), set(psutil.Process().children(recursive=True))
    yield tmp_path
    assert not {path for path in rooms() - before if f"-{os.getpid()}-" in path.name}
    assert not set(psutil.Process().children(recursive=True)) - processes
    assert not (tmp_path / "written.txt").exists()


def states(relay: Relay, rider: int) -> list[str]:
    return [psutil.Process(pid).status() for pid in relay._lanes[rider]._tree.members()]


@pytest.mark.timeout(400)  # eight riders import torch, two at a time
def test_a_heat(here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    entrants = [
        Entrant(0, "base"),
        Entrant(1, "twin", recipe("nothing")),
        Entrant(2, "rounding"),
        Entrant(3, "candidate", recipe("slow")),
        Entrant(4, "candidate", recipe("raises")),
        Entrant(5, "candidate", recipe("hangs")),
        Entrant(6, "seed"),
    ]
    with Relay(["train.py", "0"], entry=str(here / "entry.py"), limit_s=5.0) as relay:
        others_stand = _look_at_others(relay)
        reasons = [_enter(relay, entrant, following) for entrant, following in itertools.pairwise(entrants)]
        assert others_stand and all(others_stand), "steps of the warm-up are not slowed by who starts beside them"
        assert reasons[:3] == ["", "", ""] and reasons[4:] == ["", ""]
        assert reasons[3].startswith(SLOWER) and "ms a step instead of" in reasons[3]
        assert relay.leave(3).laps[0].num_steps == 4  # two raised the suspicion, two confirmed it
        assert relay.capacity() > 1
        assert list(relay._ahead) == [6], "it was expected, and has not entered yet"
        _is_held_for_a_while(relay, monkeypatch)
        for round_ in range(2):
            for rider in (1, 0, 2):
                lap = relay.lap(rider, round_, STEPS, LEAD_IN)
                assert not relay._ahead, "nobody starts beside a block that is timed"
                assert (lap.rider, lap.round, lap.num_steps, lap.failure, lap.is_last) == (
                    rider,
                    round_,
                    STEPS,
                    "",
                    False,
                )
                num_between = 0 if rider else 14  # the base ran beside the slow one, and then up to the end of a block
                assert lap.first_step == 5 + LEAD_IN + num_between + round_ * (STEPS + LEAD_IN)
                assert lap.num_samples == 4 * STEPS and lap.seconds > 0
                assert {state for other in (0, 1, 2) for state in states(relay, other)} == {"stopped"}
        lap = relay.lap(4, 0, 20, 1)
        assert lap.failure == relay.record(4).failure == "ValueError: of its own" and lap.is_last
        assert (lap.first_step, lap.num_steps) == (12, 0), "how far it came"
        assert relay.lap(4, 1, 20, 1).failure
        lap = relay.lap(5, 0, 20, 1)
        assert re.fullmatch(r"had not reached a step after \d+ s, and was ended", lap.failure)
        assert "stopped" in states(relay, 0)  # costs only itself

        base, twin, rounding = (relay.leave(rider).witness for rider in (0, 1, 2))
        num_steps = 5 + 2 * (STEPS + LEAD_IN)
        assert len(twin.losses) == num_steps and len(twin.snapshots) == 3 and len(twin.digests) == 3
        assert (twin.losses, twin.snapshots) == (base.losses[:num_steps], base.snapshots)
        assert twin.digests[0] == base.digests[0]
        assert rounding.digests[0] != base.digests[0]
        assert rounding.losses[0][1] == pytest.approx(base.losses[0][1], rel=1e-4)
        _rides_by_relaunching(relay, entrants[6], base.losses)
    assert "noise" not in "".join(capfd.readouterr())


def _look_at_others(relay: Relay) -> list[bool]:
    """At every step of a warm-up: whether those that start beside it stand still."""
    seen, judge = list[bool](), relay._judge_pace

    def look(lane: Lane, ledger: Ledger, slow_start: SlowStart) -> None:
        for other in relay._ahead.values():
            seen.append({psutil.Process(pid).status() for pid in other._tree.members()} <= {"stopped", "zombie"})
        judge(lane, ledger, slow_start)

    relay._judge_pace = look  # type: ignore[method-assign]
    return seen


def _is_held_for_a_while(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the one that warms up wait for what the other one has locked, neither stands still for ever."""
    rider, other = relay._lanes[0], relay._ahead[6]
    start_s = other.start_s
    with relay._alone(rider):
        other.hold()
        rider.on_wait()
        assert other.is_held and other.start_s == start_s
        monkeypatch.setattr("slipstream.supervise.race._MOST_HELD_S", 0.0)
        rider.on_wait()
        assert not other.is_held and other.start_s > start_s, "what it stood still for is no part of its start"
    assert "stopped" not in {psutil.Process(pid).status() for pid in other._tree.members()}


def _enter(relay: Relay, entrant: Entrant, following: Entrant) -> str:
    """While the next one is launched already, from the second on."""
    relay.expect(following)
    reason = relay.enter(entrant)
    assert list(relay._ahead) == ([] if entrant.role == "base" else [following.ident])
    assert not any(lane.is_held for lane in relay._ahead.values())
    return reason


def _rides_by_relaunching(relay: Relay, seed: Entrant, losses: list[tuple[int, float]]) -> None:
    """No two fit: the base is launched anew for its lap, and sees what it saw before."""
    relay.capacity = lambda: 1  # type: ignore[method-assign]
    assert relay.enter(seed) == ""
    lap = relay.lap(0, 2, STEPS, LEAD_IN)
    assert (lap.first_step, lap.num_steps, lap.failure) == (5 + LEAD_IN, STEPS, "")
    record = relay.record(0)
    assert record.num_launches == 2 and record.witness.losses == losses
    other = relay.record(6)
    assert not other.failure and len(other.witness.losses) == 5
    assert all(a != b for a, b in zip(other.witness.losses, losses, strict=False))


DRIVE = """
import sys
from slipstream.records import Entrant
from slipstream.supervise.race import Relay
with Relay(["train.py", "2"], use_overlay=False) as relay:
    assert relay.enter(Entrant(0, "base")) == ""
    assert relay.lap(0, 0, 2, 1).num_steps == 2
    print("standing", flush=True)
    sys.stdin.readline()
    print("riding", flush=True)
    relay.lap(0, 1, 10**9, 1)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_relay(here: Path, number: signal.Signals) -> None:
    (here / "drive.py").write_text(DRIVE)
    command = [sys.executable, "drive.py"]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE)
    assert driver.stdin is not None and driver.stdout is not None
    assert driver.stdout.readline() == "standing\n"
    riders = psutil.Process(driver.pid).children(recursive=True)
    assert len(riders) == 3  # the loader's workers too
    assert {process.status() for process in riders} == {"stopped"}
    if number == signal.SIGINT:  # while it rides; the other one while it stands, when it hears nothing
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "riding\n"
        time.sleep(0.2)
        driver.send_signal(number)
        assert "KeyboardInterrupt" in driver.communicate(timeout=20)[1]
        assert not [path for path in rooms() if f"-{driver.pid}-" in path.name]
    else:
        driver.kill()
        driver.communicate(timeout=20)
    _, alive = psutil.wait_procs(riders, timeout=5)
    assert not alive
    (here / "written.txt").unlink()  # no overlay: real


BURSTY = """
import os, sys, time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
while True:
    time.sleep(0.3 if os.path.exists(sys.argv[1]) else 0.02)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.timeout(400)  # eight riders import torch, one after the other
def test_a_slow_start_is_compared_with_the_base_in_the_same_seconds(here: Path) -> None:
    """While the file is there, every step of every rider takes 15 times as long: as beside another program."""
    (here / "train.py").write_text(BURSTY)
    burst = here / "burst"
    with Relay(["train.py", str(burst)], entry=str(here / "entry.py"), use_overlay=False) as relay:
        assert relay.enter(Entrant(0, "base")) == ""
        assert relay.enter(Entrant(1, "candidate", recipe("slow"))).startswith(SLOWER)
        assert relay.leave(1).laps[0].num_steps == 4
        between = relay.record(0).laps
        assert [lap.round for lap in between] == [-1] * 3 and {lap.num_steps for lap in between} == {STEPS_BESIDE}

        burst.touch()
        assert relay.enter(Entrant(2, "candidate", recipe("nothing"))) == ""
        burst.unlink()
        assert len(relay.record(0).laps) > 3, "the base ran while the candidate was held"
        for rider in (0, 2):
            lap = relay.lap(rider, 1, STEPS, LEAD_IN)
            assert (lap.first_step + lap.num_steps - 5) % (STEPS + LEAD_IN) == 0, "blocks end at the same steps again"
        assert relay.leave(2).num_launches == 1

        relay.capacity = lambda: 1  # type: ignore[method-assign]
        relay.leave(0)
        assert relay.enter(Entrant(3, "candidate", recipe("slow"))).startswith(SLOWER)
        assert relay.leave(3).num_launches == 2 and relay.record(0).num_launches == 2
        burst.touch()
        assert relay.enter(Entrant(4, "candidate", recipe("nothing"))) == ""
        burst.unlink()
        assert relay.leave(4).num_launches == 2
