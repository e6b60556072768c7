"""slipstream is set up in processes that a script starts, with every start method, and no fault of it stops them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path

import pytest

from slipstream.records import Ended, Ending, ProcessStarted
from slipstream.seams.patching import Patches
from slipstream.supervise.check import CheckOptions, supervise
from slipstream.trial.child_processes import ChildSettings, follow, unfollow
from slipstream.trial.lifecycle import TrialSettings, start_run
from slipstream.wire.spool import SpoolReader

TRAIN = """
import multiprocessing, sys, torch
def work(rank):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(30):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    process = context.Process(target=work, args=(0,))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


def nothing() -> None:
    pass


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_record_that_they_start(tmp_path: Path, method: str) -> None:
    run = start_run(TrialSettings(mode="check", spool=str(tmp_path), script=["train.py"]))
    follow(run)
    try:
        child = multiprocessing.get_context(method).Process(target=nothing)
        child.start()
        child.join()
    finally:
        unfollow(run)
        run.leave(Ending("finished", 0, 0.0))
    assert child.exitcode == 0
    roles = {process: m.role for process, m in SpoolReader(tmp_path).read() if isinstance(m, ProcessStarted)}
    assert roles == {os.getpid(): "main", child.pid: "child"}


def test_a_forked_child_leaves_its_parents_changes_in_place(tmp_path: Path) -> None:
    """Undoing them may change objects that both share. The child's messages are still written."""
    shared = multiprocessing.Value("i", 0)
    run = start_run(TrialSettings(mode="check", spool=str(tmp_path), script=["train.py"]))
    own = run.patches or Patches(run.complain, lambda: False)
    run.patches = own
    own.on_close(lambda: setattr(shared, "value", shared.value + 1))
    follow(run)
    try:
        child = multiprocessing.get_context("fork").Process(target=nothing)
        child.start()
        child.join()
        assert (child.exitcode, shared.value) == (0, 0)
    finally:
        unfollow(run)
        run.leave(Ending("finished", 0, 0.0))
    assert shared.value == 1
    assert {process for process, m in SpoolReader(tmp_path).read() if isinstance(m, Ended)} == {os.getpid(), child.pid}


def test_following_leaves_nothing_behind(tmp_path: Path) -> None:
    from multiprocessing import spawn

    before = spawn.get_preparation_data
    run = start_run(TrialSettings(mode="check", spool=str(tmp_path)))
    follow(run)
    assert spawn.get_preparation_data is not before
    unfollow(run)
    run.leave(Ending("finished", 0, 0.0))
    assert spawn.get_preparation_data is before


def test_a_child_that_slipstream_cannot_set_up_continues() -> None:
    for module, argument in (("no.such.module", b""), ("slipstream.trial.child_processes", b"not settings")):
        assert pickle.loads(pickle.dumps({"a": ChildSettings(module, "start_spawned", argument), "b": 1}))["b"] == 1


def test_training_in_a_spawned_child_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    session = supervise(CheckOptions(["train.py", "spawn"]))
    assert session.ending.exit_code == 0
    assert len(session.steps) >= 20
