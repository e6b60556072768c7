"""How a script with added workers ends after a killed worker or Ctrl-C. The scripts run in separate processes, because
the signal of a dead worker would interrupt the test at any line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

SCRIPT = textwrap.dedent("""
    import os, signal, sys, time
    import torch
    from torch.utils.data import DataLoader, get_worker_info

    from slipstream.records import Choice, Recipe
    from slipstream.seams.patching import Patches
    from slipstream.techniques._core.apply_recipe import apply_recipe

    class Slow:
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            if sys.argv[1] == "kill" and index == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.002)
            return index

    context = apply_recipe(Recipe((Choice("workers", 2),)), Patches(print, torch.compiler.is_compiling), print)
    # Lists, because torch would request the handles of tensors from the dead worker.
    loader = DataLoader(Slow(), 2, collate_fn=list)
    for number, batch in enumerate(loader):
        if number == 0:
            print(*(worker.pid for worker in loader._iterator._workers), flush=True)
    """)


def train(tmp_path: Path, ending: str) -> tuple[int, str, list[int]]:
    """Returns the exit code of a script, its text on stderr, and its workers."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    child = subprocess.Popen(
        [sys.executable, str(script), ending], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stderr is not None
    workers = [int(word) for word in child.stdout.readline().split()]
    if ending == "interrupt":
        child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    return child.returncode, said, workers


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def assert_all_gone(processes: list[int]) -> None:
    assert len(processes) == 2
    deadline = time.monotonic() + 20
    while not all(is_gone(process) for process in processes):
        assert time.monotonic() < deadline, "a worker was left behind"
        time.sleep(0.05)


def test_a_killed_worker_raises_torchs_own_error(tmp_path: Path) -> None:
    code, said, workers = train(tmp_path, "kill")
    assert code == 1
    assert "RuntimeError: DataLoader worker (pid" in said
    assert_all_gone(workers)


def test_interrupt_leaves_no_process(tmp_path: Path) -> None:
    code, said, workers = train(tmp_path, "interrupt")
    assert code in (-signal.SIGINT, 130)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert_all_gone(workers)
