"""Runs `slipstream tune` and other commands for benchmarks, and reads their results."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slipstream.records import Tuning
from slipstream.store.sessions import load_session, newest_first

SLIPSTREAM = (sys.executable, "-m", "slipstream")
END_S = 30.0  # Time in which a tuning must end its trials and remove their workspaces


@contextlib.contextmanager
def beside(command: Sequence[str], folder: Path, log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in a process group of its own during the `with` block, and then ends the group."""
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(log.open("wb")) if log is not None else subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    # Other processes of the group may still run after the first has ended.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(command: Sequence[str], folder: Path, log: Path | None = None) -> float:
    """Runs a command to its end and returns its seconds. Raises CalledProcessError if the command fails."""
    start = time.monotonic()
    with beside(command, folder, log) as process:
        code = process.wait()
        seconds = time.monotonic() - start
    if code:
        raise subprocess.CalledProcessError(code, list(command))
    return seconds


def last_tuning(folder: Path) -> Tuning:
    """The newest tuning whose session is stored in this folder."""
    for path in newest_first(folder):
        tuning = load_session(path).tuning
        if tuning is not None:
            return tuning
    raise FileNotFoundError(f"no tuning is stored in {folder}")


def raced_share(tuning: Tuning) -> tuple[int, int]:
    """The number of applying techniques that were timed in a race, and the number of all that apply."""
    singles = [verdict for verdict in tuning.verdicts if verdict.kind == "single"]
    applying = {verdict.technique for verdict in singles if verdict.decision != "not_applicable"}
    raced = {one.technique for one in singles if one.speed is not None or one.step_ms is not None}
    return len(raced & applying), len(applying)
