"""A process and all that it started: stopped, continued, weighed and ended together, orphans included."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from slipstream.supervise.orphans import no_leftovers
from slipstream.supervise.process_tree import ProcessTree

# A leader with a child, and a grandchild whose own parent is gone
FAMILY = """
import os, subprocess, sys, time
os.setpgid(0, 0)
sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
subprocess.Popen(sleep)
orphan = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
subprocess.run([sys.executable, "-c", orphan, *sleep])
print("ready", flush=True)
while True: time.sleep(0.01)
"""


def states(pids: list[int]) -> set[str]:
    return {psutil.Process(pid).status() for pid in pids}


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")
def test_a_family_stands_still_goes_on_and_ends() -> None:
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
        assert used_s > 0.0 and tree.cpu_s() == used_s, "who stands still uses nothing"
        tree.resume()
        assert "stopped" not in states(members)
        tree.stop()
        tree.kill()
        assert process.wait(5) == -9
        process.stdout.close()
        time.sleep(0.01)
        assert not [pid for pid in members if Path(f"/proc/{pid}").exists()]


# A rider that was forked, as its brothers were, from a process that has much; it has a worker that writes little
FORKING = """
import os, sys, time
many = bytearray(os.urandom(1 << 20) * 64)
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setpgid(0, 0)
        if os.fork() == 0:
            own = bytearray(os.urandom(1 << 20) * 16)
            os.write(1, b"%d\\n" % os.getppid())  # whole, beside its brothers'
        break
time.sleep(100)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sizes are read from /proc")
def test_what_a_trial_shares_with_others_counts_for_each_of_them_and_with_its_workers_once() -> None:
    with no_leftovers():
        alone, beside = weights(1), weights(3)
    assert all(80 << 20 < weight < 120 << 20 for weight in beside), "what it was forked with, and the worker's own"
    assert beside == pytest.approx(3 * alone, rel=0.02), "however many there are"


def weights(num_trials: int) -> list[int]:
    """Of so many riders, as the relay weighs each of them."""
    command = [sys.executable, "-c", FORKING, str(num_trials)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        trees = [ProcessTree(int(parent.stdout.readline())) for _ in range(num_trials)]
        found = [tree.memory_bytes(tree.root) for tree in trees]
        for tree in trees:
            tree.kill()
        parent.kill()
    return found
