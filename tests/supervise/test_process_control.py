"""A process and everything that it started, including orphans, is stopped, continued, measured and ended together."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from slipstream.supervise.process_control import ProcessTree, no_leftovers

# A group leader with a child, and with a grandchild whose own parent has ended
FAMILY = """
import os, subprocess, sys, time
os.setpgid(0, 0)
sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
subprocess.Popen(sleep)
orphan = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
subprocess.run([sys.executable, "-c", orphan, *sleep])
while time.process_time() < 0.1: pass  # more than a tick of the system's clock
print("ready", flush=True)
while True: time.sleep(0.01)
"""


def states(pids: list[int]) -> set[str]:
    return {psutil.Process(pid).status() for pid in pids}


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted only on Linux")
def test_a_tree_is_stopped_continued_and_ended() -> None:
    with no_leftovers():
        process = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        assert process.stdout.readline() == "ready\n"
        tree = ProcessTree(process.pid)
        members = tree.members()
        assert members[0] == process.pid and orphan in members and len(members) == 3
        tree.stop(spared=orphan)
        assert states([pid for pid in members if pid != orphan]) == {"stopped"}
        assert states([orphan]) != {"stopped"}
        tree.stop()
        assert states(members) == {"stopped"}
        assert tree.memory_bytes(process.pid) > 1 << 20
        used_s = tree.cpu_s()
        assert used_s > 0.0 and tree.cpu_s() == used_s, "stopped processes use no CPU"
        tree.resume()
        assert "stopped" not in states(members)
        tree.stop()
        tree.kill()
        assert process.wait(5) == -9
        process.stdout.close()
        time.sleep(0.01)
        assert not [pid for pid in members if Path(f"/proc/{pid}").exists()]


# Trials that are forked from a process with much memory. Each has a worker with a little memory of its own.
FORKING = """
import os, sys, time
many = bytearray(os.urandom(1 << 20) * 64)
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setpgid(0, 0)
        if os.fork() == 0:
            own = bytearray(os.urandom(1 << 20) * 16)
            os.write(1, b"%d\\n" % os.getppid())  # one write, so that the lines of several trials do not mix
        break
time.sleep(100)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sizes are read from /proc")
def test_memory_shared_with_other_trials_counts_fully_and_memory_shared_with_workers_once() -> None:
    with no_leftovers():
        alone, beside = measured_bytes(1), measured_bytes(3)
    assert all(80 << 20 < size < 120 << 20 for size in beside), "the memory it was forked with, and the worker's own"
    assert beside == pytest.approx(3 * alone, rel=0.02), "independent of the number of trials"


def measured_bytes(num_trials: int) -> list[int]:
    """The memory of each of `num_trials` trials, as the backend measures it."""
    command = [sys.executable, "-c", FORKING, str(num_trials)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        trees = [ProcessTree(int(parent.stdout.readline())) for _ in range(num_trials)]
        found = [tree.memory_bytes(tree.root) for tree in trees]
        for tree in trees:
            tree.kill()
        parent.kill()
    return found


# A process that holds shared memory as a loader's worker does while it hands over a tensor
HOLDER = """
import os, pathlib, time
pathlib.Path(f"/dev/shm/torch_{os.getpid()}_1_0").touch()
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory has files only on Linux")
def test_shared_memory_of_killed_processes_is_removed() -> None:
    holders = [subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    files = [Path(f"/dev/shm/torch_{holder.pid}_1_0") for holder in holders]
    try:
        for holder in holders:
            assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
        ProcessTree(holders[0].pid).kill()
        assert [file.exists() for file in files] == [False, True]
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
        files[1].unlink()
