"""Commands on a machine that lacks something: a sentence that says what, or no consequence at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import sys, torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.ones(64, 8))
for epoch in range(int(sys.argv[1])):
    for (x,) in torch.utils.data.DataLoader(data, batch_size=32, num_workers=int(sys.argv[2])):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""
_NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--user", "--map-root-user"]
_DISK = "for place in /var/tmp /dev/shm {folder}; do mount -t tmpfs -o size={size} tmpfs $place; done; "


def slipstream(folder: Path, prepare: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a shell that prepares the machine."""
    (folder / "train.py").write_text(TRAIN)
    command = ["sh", "-c", f'{prepare}exec "$@"', "sh", sys.executable, "-m", "slipstream", *arguments]
    return subprocess.run(
        [*(_NAMESPACE if "mount" in prepare else []), *command],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder on which a small disk can be mounted."""
    if subprocess.run([*_NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("no mounts here")
    path = tmp_path / "small"
    path.mkdir()
    return path


def test_a_full_disk_is_named(tmp_path: Path, small: Path) -> None:
    prepare = _DISK.format(folder=small, size="48k")
    done = slipstream(tmp_path, prepare, "check", "--seconds", "2", "train.py", "200", "0", TMPDIR=str(small))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "is full, so that what the script wrote" in done.stderr and "set TMPDIR" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("prepare", "num_workers"),
    [("ulimit -n 12; ", "0"), ("mount -t tmpfs -o size=64m tmpfs /dev/shm; ", "1")],
    ids=["files", "shared_memory"],
)
def test_little_is_enough_for_a_check(tmp_path: Path, small: Path, prepare: str, num_workers: str) -> None:
    arguments = ["check", "--seconds", "2", "train.py", "40", num_workers]
    done = slipstream(tmp_path, prepare, *arguments, HOME="/proc/nothing")  # in which nothing can be written
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_too_few_open_files_for_a_tuning(tmp_path: Path) -> None:
    arguments = ["--only", "fused_optimizer", "--seconds", "3", "--budget", "10s", "train.py", "4000", "0"]
    done = slipstream(tmp_path, "ulimit -n 12; ", "tune", *arguments)
    assert done.returncode == 2 and "too many files are open. Raise the limit" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
