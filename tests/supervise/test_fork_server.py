"""Trials that are forked from a process that has imported torch. They train alike, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from slipstream.records import Choice, Recipe, TrialRecord, TrialSpec
from slipstream.supervise.fork_server import ForkedProcess
from slipstream.supervise.race import COLD, ProcessBackend
from slipstream.trial.forked import ForkSafety

TRAIN = """
import os, sys
was_there = "torch" in sys.modules
os.environ.update(dict([sys.argv[1].split("=")] if len(sys.argv) > 1 else []))
import torch
print("output of the script")
data = torch.utils.data.TensorDataset(torch.randn(4_000, 8), torch.randn(4_000, 1))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for x, y in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=1):
    optimizer.zero_grad()
    (0.0 * model(x).sum() + float(was_there)).backward()
    (model(x) - y).square().mean().backward()
    optimizer.step()
"""

BARE = Recipe()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    before = set(psutil.Process().children(recursive=True))
    yield tmp_path
    assert not set(psutil.Process().children(recursive=True)) - before


def was_imported(record: TrialRecord) -> bool:
    """Whether torch was imported before the script's first line. The script records this as its first loss."""
    return record.fingerprint.losses[0][1] == 1.0


def train_alike(*records: TrialRecord) -> bool:
    """Whether all losses and weights that the trials have of the same steps are equal. Their numbers of steps differ,
    because the warm-up lasts until batches that workers finished ahead are used up."""
    first, *others = [record.fingerprint for record in records]
    losses = [dict(one.losses[1::2]) for one in (first, *others)]
    digests = [dict(one.digests) for one in (first, *others)]
    return all(
        len(mine.keys() & theirs.keys()) > least
        and all(mine[step] == theirs[step] for step in mine.keys() & theirs.keys())
        for (mine, *rest), least in ((losses, 10), (digests, -1))
        for theirs in rest
    )


def run(backend: ProcessBackend, ident: int, recipe: Recipe = BARE) -> TrialRecord:
    assert backend.enter(TrialSpec(ident, "candidate" if recipe.choices else "base", recipe)) is None
    timing = backend.run_block(ident, 0, 6, 1)
    assert (timing.num_steps, timing.failure) == (6, None)
    return backend.record(ident)


def variables(recipe: Recipe) -> dict[str, str]:
    return {"A_VARIABLE": "1"} if recipe.choices else {}


def test_a_forked_trial_trains_like_one_in_a_new_process(here: Path) -> None:
    other = Recipe((Choice("nothing"),))
    with ProcessBackend(["train.py"]) as backend:
        cold = run(backend, 0)
    with ProcessBackend(["train.py"], may_fork=True, environment_of=variables) as backend:
        forked, again = run(backend, 0), run(backend, 1)
        with_variable = run(backend, 2, other)
        assert len(backend._fork_servers._known) == 2, "one server for each environment"
        server = backend._fork_servers._known[frozenset({("PYTHONHASHSEED", "0")})]
        assert server is not None
        server._process.kill()
        assert not was_imported(run(backend, 3)), "without the server trials start in new processes"
    assert not was_imported(cold) and was_imported(forked) and was_imported(again) and was_imported(with_variable)
    assert train_alike(cold, forked, again, with_variable)


@pytest.mark.parametrize(
    ("variable", "is_forked"),
    [("OMP_NUM_THREADS=2", False), ("PYTORCH_NVML_BASED_CUDA_CHECK=1", True)],
    ids=["set_by_user", "set_by_lightning"],
)
def test_a_script_that_sets_a_variable_that_torch_reads_at_import_starts_in_a_new_process(
    here: Path, variable: str, is_forked: bool
) -> None:
    with ProcessBackend(["train.py", variable], may_fork=True) as backend:
        record = run(backend, 0)
        assert was_imported(record) is is_forked and record.num_launches == 1
        assert was_imported(run(backend, 1)) is is_forked, "as do all later trials"
        why = "the script sets OMP_NUM_THREADS, which torch reads while it is imported"
        assert backend.notes == ([] if is_forked else [COLD.format(why)])


def test_a_script_beside_a_module_that_is_already_imported_starts_in_a_new_process(here: Path) -> None:
    (here / "msgspec.py").write_text("")
    with ProcessBackend(["train.py"], may_fork=True) as backend:
        assert not was_imported(run(backend, 0))


def test_reasons_against_forking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    (tmp_path / "models").mkdir()
    (tmp_path / "json").mkdir()  # a data folder, not a package
    fork_safety = ForkSafety()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/set/by/opencv")
    assert (fork_safety.obstacle_at_first([str(script)]), fork_safety.obstacle_by_now()) == ("", "")
    assert "is a folder" in fork_safety.obstacle_at_first([str(tmp_path)]), (
        "which is the first entry of its import path"
    )
    (tmp_path / "psutil.py").write_text("")
    (tmp_path / "pytest").mkdir()
    (tmp_path / "pytest" / "__init__.py").write_text("")
    assert fork_safety.shadows(tmp_path) == ["psutil", "pytest"]
    assert fork_safety.obstacle_at_first([str(script)]).endswith(f"the name of psutil in {tmp_path}")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert fork_safety.obstacle_by_now().endswith(f"the name of psutil in {tmp_path}")
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda pid: {0, 99})
        assert "cores" in fork_safety.obstacle_by_now()
    assert fork_safety.obstacle_by_now() == ""


def test_a_script_that_fails_after_torch_is_imported_starts_in_a_new_process(here: Path) -> None:
    (here / "train.py").write_text("import sys\nassert 'torch' not in sys.modules, 'torch came first'\n" + TRAIN)
    with ProcessBackend(["train.py"], may_fork=True) as backend:
        assert not was_imported(run(backend, 0)) and len(backend.notes) == 1
        assert "did not reach a step (AssertionError: torch came first)" in backend.notes[0]


def test_a_cold_trial_starts_in_a_new_process_beside_forked_ones(here: Path) -> None:
    with ProcessBackend(["train.py"], may_fork=True) as backend:
        forked = run(backend, 0)
        cold = TrialSpec(2, "base", is_cold=True)
        backend.expect(cold)
        assert list(backend._ahead) == [2], "it starts now"
        assert backend.enter(TrialSpec(1, "candidate", Recipe((Choice("nothing"),)), is_cold=True)) is None
        assert backend.enter(cold) is None and not backend._ahead
        assert [backend.run_block(trial, 0, 6, 1).num_steps for trial in (1, 2)] == [6, 6]
        records = [backend.leave(trial) for trial in (1, 2)]
        assert was_imported(forked) and not any(map(was_imported, records))
        assert train_alike(forked, *records)
        backend.leave(0)
        backend.expect(TrialSpec(3, "base", is_cold=True))
        assert list(backend._ahead) == [3], "the first base need not be there any more"
        assert was_imported(run(backend, 4)) and not backend.notes


def test_trials_start_in_new_processes_if_the_server_cannot_start(here: Path, tmp_path: Path) -> None:
    entry = tmp_path / "entry.py"
    entry.write_text(
        "import sys\nfrom slipstream.trial.main import main\n"
        "from slipstream.techniques._core.apply_recipe import apply_recipe\n"
        "if sys.argv[1] == '--ready': sys.exit(1)\nmain(sys.argv[1], apply_recipe)\n"
    )
    with ProcessBackend(["train.py"], may_fork=True, entry=str(entry)) as backend:
        assert not was_imported(run(backend, 0)) and list(backend._fork_servers._known.values()) == [None]


DRIVE = """
import sys
from slipstream.records import TrialSpec
from slipstream.supervise.race import ProcessBackend
with ProcessBackend(["train.py"], may_fork=True) as backend:
    assert backend.enter(TrialSpec(0, "base")) is None
    assert backend.run_block(0, 0, 2, 1).num_steps == 2
    print("paused", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_backend(here: Path, number: signal.Signals, survivors: Any) -> None:
    (here / "drive.py").write_text(DRIVE)
    pipe = subprocess.PIPE
    driver = subprocess.Popen([sys.executable, "drive.py"], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert driver.stdout is not None and driver.stdout.readline() == "paused\n"
    below = psutil.Process(driver.pid).children(recursive=True)
    assert len(below) == 3, "the server, the trial and its worker"
    assert sorted(process.status() for process in below) == ["sleeping", "stopped", "stopped"]
    driver.send_signal(number)
    driver.communicate(timeout=20)
    assert not survivors(below)


def test_a_child_that_another_process_started() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "100"], os.environ)
    child = ForkedProcess(pid)
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    os.kill(pid, signal.SIGKILL)
    assert child.wait(5.0) == -signal.SIGKILL and child.poll() == -signal.SIGKILL
    assert ForkedProcess(pid).wait(1.0) == 0, "it has already been waited for"
