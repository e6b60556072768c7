"""Complete runs of tiny scripts through `supervise`. Tests that send signals run the command in its own process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from slipstream.diagnose.foreign_load import foreign_cores
from slipstream.machine.foreign_load import ForeignLoad
from slipstream.sandbox import overlay
from slipstream.sandbox.temporary_folder import TemporaryFolder, remove_tree
from slipstream.sandbox.workspace import Workspace, sweep
from slipstream.supervise.check import CheckOptions, supervise
from slipstream.supervise.exit_status import exit_code, remark
from slipstream.supervise.trial_process import RefusalError

TRAIN = """
import sys, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
print("terminal", sys.stdout.isatty(), sys.stderr.isatty(), flush=True)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.005)
    {body}
"""


def write(path: Path, body: str = "", steps: int = 100_000) -> None:
    path.write_text(TRAIN.format(steps=steps, body=textwrap.indent(textwrap.dedent(body), "    ").strip()))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def leaves_nothing() -> object:
    before = set(workspaces()), {process.pid for process in psutil.Process().children(recursive=True)}
    yield
    mine = {path for path in workspaces() if path.name.startswith(f"slipstream-check-{os.getpid()}-")}
    assert not mine - before[0]
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before[1]
    return None


def workspaces() -> list[Path]:
    return [path for place in (tempfile.gettempdir(), "/dev/shm") for path in Path(place).glob("slipstream-check-*")]


def test_a_checkpoint_is_read_back_and_gone_afterwards(here: Path) -> None:
    write(
        here / "train.py",
        """
        torch.save(model.state_dict(), "model.pt")
        model.load_state_dict(torch.load("model.pt"))
        """,
    )
    session = supervise(CheckOptions(["train.py"], num_steps=12, seconds=2.0))
    assert (session.ending.reason, session.ending.exit_code) == ("stopped", 0)
    assert session.steps and not (here / "model.pt").exists()
    assert session.written == ["model.pt"]
    if ForeignLoad().num_usable and Path("/proc/stat").exists():
        samples = session.foreign_load
        steps = [foreign_cores(session, step.start_ns, step.end_ns) for step in session.steps[:-1]]
        assert samples and None not in steps[:1], "the samples and the steps have the same clock"
        assert [sample.start_ns for sample in samples] == sorted(sample.start_ns for sample in samples)


def test_without_overlay_known_writers_are_redirected_and_others_listed(here: Path) -> None:
    write(
        here / "train.py",
        """
        torch.save(model.state_dict(), "model.pt")
        model.load_state_dict(torch.load("model.pt", weights_only=True))
        open("log.txt", "a").close()
        """,
        steps=8,
    )
    session = supervise(CheckOptions(["train.py"], seconds=5.0, use_overlay=False))
    assert session.ending.exit_code == 0
    assert not (here / "model.pt").exists() and (here / "log.txt").exists()
    assert session.written == ["log.txt"]
    assert session.no_overlay == "--no-overlay"


def test_the_scripts_own_failure_is_kept(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here / "train.py", "if step == 3: raise ValueError('mine')")
    session = supervise(CheckOptions(["train.py"]))
    assert (session.ending.reason, session.ending.exit_code, exit_code(session)) == ("raised", 1, 1)
    assert session.ending.message == "ValueError: mine"
    assert session.steps
    bare = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True)
    assert capfd.readouterr().err == bare.stderr


def test_what_a_killed_trial_recorded_is_kept(here: Path) -> None:
    write(here / "train.py", "if step == 200: import os; os.kill(os.getpid(), 9)")
    session = supervise(CheckOptions(["train.py"], seconds=30.0))
    assert (session.ending.reason, session.ending.exit_code) == ("killed", 137)
    assert "SIGKILL" in session.ending.message
    assert session.steps


def test_a_script_without_a_step(here: Path) -> None:
    (here / "train.py").write_text("print('hello')")
    session = supervise(CheckOptions(["train.py"]))
    assert exit_code(session) == 2
    assert "train.py ran to its end" in remark(session) and "no module was called" in remark(session)


def test_a_machine_without_cuda(here: Path) -> None:
    (here / "train.py").write_text("import torch\ntorch.nn.Linear(1, 1).to('cuda')\n")
    session = supervise(CheckOptions(["train.py"]))
    if session.ending.exit_code == 0:
        pytest.skip("there is a GPU here")
    assert exit_code(session) == 2 and "CUDA" in remark(session)


def test_a_module_that_does_not_exist(here: Path) -> None:
    with pytest.raises(RefusalError, match="nowhere"):
        supervise(CheckOptions(["-m", "nowhere.train"]))


@pytest.mark.skipif(overlay.probe()[0] is None, reason="no overlay")
def test_a_cache_variable_does_not_open_the_folder(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HF_HOME", str(here))
    monkeypatch.setenv("TORCH_HOME", str(cache))
    (here / "old.txt").write_text("old")
    (here / "train.py").write_text(
        "import os; open('old.txt', 'w').close(); os.remove('train.py'); "
        "open(os.path.join(os.environ['TORCH_HOME'], 'weights'), 'w').close()"
    )
    session = supervise(CheckOptions(["train.py"]))
    assert session.ending.exit_code == 0
    assert (here / "old.txt").read_text() == "old" and (here / "train.py").exists()
    assert sorted(session.written) == ["old.txt", "train.py"]
    assert str(cache) in session.passed_through and str(here) not in session.passed_through
    assert any("HF_HOME" in note and "thrown away" in note for note in session.notes)


@pytest.mark.skipif(overlay.probe()[0] is None, reason="no overlay")
def test_an_overlay_that_cannot_be_created(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = overlay.prepare

    def prepare_badly(*args: Any, **kwargs: Any) -> overlay.OverlayPlan:
        return msgspec.structs.replace(prepare(*args, **kwargs), workspace="/nonexistent")

    monkeypatch.setattr(overlay, "prepare", prepare_badly)
    (here / "train.py").write_text("open('real.txt', 'w').close()")
    session = supervise(CheckOptions(["train.py"]))
    assert session.ending.exit_code == 0 and session.written == ["real.txt"]
    assert session.no_overlay and session.no_overlay != "--no-overlay"


def test_processes_left_behind_are_ended(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "train.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('left', child.pid, flush=True)\n"
    )
    supervise(CheckOptions(["train.py"]))
    [line_left] = [line for line in capfd.readouterr().out.splitlines() if line.startswith("left ")]
    assert not psutil.pid_exists(int(line_left.removeprefix("left ")))


def test_workspaces_of_ended_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f"slipstream-check-{dead.pid}-x" / "layers").mkdir(parents=True)
    (tmp_path / f"slipstream-probe-{dead.pid}-x" / "root").mkdir(parents=True)
    mine = [TemporaryFolder(f"slipstream-{what}-", tmp_path) for what in ("check", "probe")]
    (tmp_path / "slipstream-check-1-link").symlink_to(mine[0].path)
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {one.path.name for one in mine} | {"slipstream-check-1-link"}
    mine[0].remove()
    sweep(tmp_path)
    assert mine[1].path.is_dir() and not mine[0].path.exists()
    mine[1].remove()


_HOLD = (
    "import sys; from pathlib import Path; from slipstream.sandbox.workspace import Workspace\n"
    "print(Workspace(Path(sys.argv[1])).path, flush=True); sys.stdin.read()"
)


def test_a_workspace_of_a_process_in_another_container_is_kept(tmp_path: Path) -> None:
    """In a process id namespace of its own, the process has an id that means another process here, or none."""
    own_namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if not shutil.which("unshare") or subprocess.run([*own_namespace, "true"], capture_output=True).returncode:
        pytest.skip("no process id namespaces here")
    command = [*own_namespace, sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        theirs = theirs.rename(tmp_path / "slipstream-check-999999999-x")  # no process here has this id
        Workspace(tmp_path).remove()
        assert theirs.is_dir()
        other.stdin.close()
    Workspace(tmp_path).remove()
    assert not theirs.exists(), "its process has ended without removing it"


def start_check(here: Path) -> tuple[subprocess.Popen[str], int]:
    """Starts a check in its own session and waits until the script prints "many". Returns it and the trial's
    process."""
    check = subprocess.Popen(
        [sys.executable, "-m", "slipstream", "check", "--seconds", "60", "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert check.stdout is not None
    while check.stdout.readline().strip() != "many":
        assert check.poll() is None
    return check, psutil.Process(check.pid).children()[0].pid


def test_an_interrupt_reaches_the_script_and_the_session_is_saved(here: Path) -> None:
    write(here / "train.py", "if step == 100: print('many', flush=True)")
    check, trial = start_check(here)
    check.send_signal(signal.SIGINT)
    out, err = check.communicate(timeout=60)
    assert check.returncode == 130
    assert err.count("KeyboardInterrupt") == 1 and "src/slipstream" not in err
    assert "interrupted" in out
    assert list((here / ".slipstream" / "sessions").iterdir())
    assert not psutil.pid_exists(trial)


def test_a_second_interrupt_kills(here: Path) -> None:
    (here / "train.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('many', flush=True)\ntime.sleep(600)\n"
    )
    check, trial = start_check(here)
    for _ in range(2):
        check.send_signal(signal.SIGINT)
        time.sleep(0.5)  # two pending signals would be delivered as one
    out, _ = check.communicate(timeout=60)
    assert check.returncode == 137 and "killed" in out
    assert not psutil.pid_exists(trial)


def test_an_ignored_signal_stays_ignored(here: Path) -> None:
    """nohup ignores SIGHUP for the command and all that it starts."""
    (here / "train.py").write_text("import time\nprint('many', flush=True)\ntime.sleep(2)\nprint('end')\n")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        check, _ = start_check(here)
    finally:
        signal.signal(signal.SIGHUP, before)
    for _ in range(2):
        check.send_signal(signal.SIGHUP)
        time.sleep(0.3)
    out, _ = check.communicate(timeout=60)
    assert "end" in out.splitlines() and check.returncode == 2  # it ran to its end, without a step


def test_a_script_that_reaches_no_step_is_interrupted_and_then_killed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slipstream.supervise.check._PATIENCE_S", 0.5)
    (here / "train.py").write_text(
        "import signal, subprocess, sys, time\n"
        "def interrupted(*_):\n    print('interrupted', flush=True)\nsignal.signal(signal.SIGINT, interrupted)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "while True: time.sleep(600)\n"
    )
    session = supervise(CheckOptions(["train.py"], seconds=0.3))
    assert (session.ending.reason, session.ending.exit_code) == ("killed", 137)
    assert any("it had reached no step" in note for note in session.notes)
    assert capfd.readouterr().out == "interrupted\n"


def test_the_trial_of_a_killed_check_ends(here: Path) -> None:
    (here / "train.py").write_text("import time\nprint('many', flush=True)\ntime.sleep(600)\n")
    check, trial = start_check(here)
    check.kill()
    check.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(trial) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(trial)
    for path in workspaces():
        if path.name.startswith(f"slipstream-check-{check.pid}-"):
            remove_tree(path)
