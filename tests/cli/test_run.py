"""slipstream run with a recipe, in new processes: the recipe is applied from the start, or refused with a message."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.cli.run import _tune_and_run
from slipstream.cli.tune import Request

TRAIN = """
import os, sys
print([name for name in ("torch", "rich", "scipy", "psutil", "numpy") if name in sys.modules])
known = [name for name in sorted(os.environ) if name.startswith(("SLIPSTREAM_", "MALLOC_"))]
print([name for name in known if name != "SLIPSTREAM_CACHE"])
import torch
print(torch.get_num_threads())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(40):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""
RECIPE = """
version = 1
[recipe]
allocator = "keep"
cpu_threads = 1
[script]
command = ["train.py", "--epochs", "3"]
[evidence]
base_step_ms = 60000.0
"""
QUICK = "import sys; print(sys.argv)"


def run(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slipstream", "run", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "2", **environment},
    )


def test_the_recipe_beside_the_script_is_applied_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/train.py").write_text(TRAIN)
    (tmp_path / "job/slipstream.toml").write_text(RECIPE)
    (tmp_path / "slipstream.toml").write_text(
        RECIPE.replace("train.py", "other.py")
    )  # skipped: it is for another script
    done = run("job/train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[]",
        "['MALLOC_MMAP_THRESHOLD_', 'MALLOC_TOP_PAD_', 'MALLOC_TRIM_THRESHOLD_']",
        "1",
    ]
    first, warning, last = done.stderr.splitlines()
    assert first == "slipstream: job/slipstream.toml: allocator=keep + cpu_threads=1", (
        "printed once, although the process is restarted"
    )
    assert "measured with other arguments: --epochs 3" in warning and "slipstream tune makes a new one" in warning
    assert last.startswith("slipstream: 40 steps in ")
    assert "ms a step, in place of the 60000.0 ms that tune measured without the recipe: about " in last


def test_without_a_recipe_the_last_line_says_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "train(2).py").write_text(TRAIN)
    done = run("train(2).py", "--recipe", "x", cwd=tmp_path)
    assert done.returncode == 0
    (last,) = done.stderr.splitlines()
    assert last.startswith("slipstream: 40 steps in ")
    assert last.endswith("; no slipstream.toml here: slipstream tune 'train(2).py' makes one")


def test_options_after_the_script_are_passed_to_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(QUICK)
    done = run("--no-recipe", "train.py", "--recipe", "x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['train.py', '--recipe', 'x']\n")
    assert "makes one" not in done.stderr


def test_a_recipe_of_another_script_is_applied_only_if_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(QUICK)
    path = tmp_path / "slipstream.toml"
    path.write_text(RECIPE.replace("train.py", "jobs/other.py").replace('allocator = "keep"', ""))
    first, _ = run("train.py", cwd=tmp_path).stderr.splitlines()
    assert first == "slipstream: slipstream.toml was measured on jobs/other.py, not on train.py, so it is not applied."
    first, warning, *_ = run("--recipe", "slipstream.toml", "train.py", cwd=tmp_path).stderr.splitlines()
    assert first == "slipstream: slipstream.toml: cpu_threads=1" and "measured on jobs/other.py" in warning


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--recipe", "missing.toml"], "missing.toml cannot be read"),
        (["--recipe", "broken.toml"], "broken.toml, line 3: there is no technique 'warp_drive'; the techniques are: "),
        (["--no-recipe", "--tune"], "--no-recipe cannot be combined with"),
    ],
)
def test_a_recipe_that_cannot_be_used_gives_a_message(tmp_path: Path, args: list[str], words: str) -> None:
    (tmp_path / "train.py").write_text(QUICK)
    (tmp_path / "broken.toml").write_text("version = 1\n[recipe]\nwarp_drive = true\n")
    done = run(*args, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and "Traceback" not in done.stderr


def test_several_ranks_get_no_recipe_and_one_message(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(QUICK)
    (tmp_path / "slipstream.toml").write_text(RECIPE)
    first = run("train.py", cwd=tmp_path, WORLD_SIZE="2", RANK="0")
    assert (first.returncode, first.stdout) == (0, "['train.py']\n")
    assert "was measured with one process, so it is not applied to 2 ranks" in first.stderr
    assert "measured" not in run("train.py", cwd=tmp_path, WORLD_SIZE="2", RANK="1").stderr


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("script", [["train.py", "--epochs", "3"], ["-m", "package.train", "-v"]])
def test_after_tuning_a_new_process_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool, script: list[str]
) -> None:
    """Only two things are replaced: the tuning, and the call that starts the new process."""
    monkeypatch.chdir(tmp_path)
    started: list[list[str]] = []

    def tune(request: Request) -> int:
        if keeps:
            request.recipe_path.write_text(RECIPE)
        return 0

    monkeypatch.setattr("slipstream.cli.tune.tune_until_interrupted", tune)
    monkeypatch.setattr("os.execve", lambda path, args, variables: started.append(args))
    assert _tune_and_run(script, None) is None
    how = ["--recipe", "slipstream.toml"] if keeps else ["--no-recipe"]
    [arguments] = started
    assert arguments[arguments.index("-m") :] == ["-m", "slipstream", "run", *how, *script]


def test_a_script_that_cannot_be_tuned_is_not_trained(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    done = run("--tune", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.count("hello\n") == 1, "only the check ran the script; the training did not start"
    assert "no module was called" in done.stderr


LONG = """
import resource, sys
import torch
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, length in enumerate([64, 64, 64, 60_000, 64]):
    if step == 3 and "limited" in sys.argv:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 75 * 2**20, -1))
    loss = model(torch.randn(length, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3:
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(f"{loss.item():.5f}")
"""


def test_a_long_batch_that_does_not_fit_is_survived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The limit is set with setrlimit. The activations of the long batch, about 140 MB, exceed it."""
    (tmp_path / "train.py").write_text(LONG)
    runpy.run_path(str(tmp_path / "train.py"))
    failed = run("train.py", "limited", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert failed.returncode == 1 and "DefaultCPUAllocator" in failed.stderr
    *_, filled, modules, cure = failed.stderr.splitlines()
    assert filled.startswith("slipstream: memory ran out at train.py:12 in ") and ": activations " in filled
    assert modules.startswith("slipstream: modules that hold the most: ") and "x Linear)" in modules
    assert cure.startswith("slipstream: out of memory: slipstream run --survive-oom train.py limited computes")
    survived = run("--survive-oom", "train.py", "limited", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert survived.returncode == 0, survived.stderr
    assert survived.stdout == capsys.readouterr().out
    (last,) = survived.stderr.splitlines()
    assert "; recovered from 1 out-of-memory error, with the batch in up to " in last


def test_survive_oom_refuses_a_recipe_with_a_conflict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(QUICK)
    (tmp_path / "slipstream.toml").write_text("version = 1\n[recipe]\nmicro_batches = 2\n")
    done = run("--survive-oom", "train.py", cwd=tmp_path)
    assert done.returncode == 2 and "micro_batches both claim" in done.stderr.replace("survive_oom and ", "")
    assert "--no-recipe" in done.stderr and not done.stdout
