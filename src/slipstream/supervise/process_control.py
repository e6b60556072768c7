"""Stops, continues, ends and measures all processes of a trial from outside, by their ids: the script, its loader's
workers, and everything else that it started. Processes that a trial leaves behind are adopted and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from slipstream.sandbox import mounts
from slipstream.supervise.after_kill import Janitor, remove_shared_memory
from slipstream.supervise.signals import unbroken

_STILL_S = 0.5
_KILL_S = 5.0  # time for a killed process to leave the process table
_NATURAL_S = 1.0
_PATIENCE_S = 2.0
# These processes end by themselves when their clients have ended. Only they know which shared memory to remove.
_TRACKERS = ("resource_tracker", "torch_shm_manager")


class ProcessTree:
    """A process and everything below it. In a race this process leads a process group. A grandchild whose parent has
    ended is therefore still recognised, by its group."""

    def __init__(self, root: int) -> None:
        self.root = root

    def members(self) -> list[int]:
        found = [self.root, *descendants(self.root)]
        for orphan in _children(os.getpid()):  # adopted by this process (no_leftovers)
            if orphan != self.root and _group(orphan) == self.root:
                found += [orphan, *descendants(orphan)]
        return list(dict.fromkeys(found))

    def stop(self, spared: int = 0) -> None:
        """Stops all processes except `spared`, also those that are started meanwhile. Returns when none of them runs,
        or after half a second."""
        deadline_s = time.monotonic() + _STILL_S
        while True:
            moving = [pid for pid in self.members() if pid != spared and _state(pid) not in "TtZX"]
            if not moving or time.monotonic() > deadline_s:
                return
            for pid in moving:
                _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.members():
            _send(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends all processes, stopped or not, and removes their shared memory. All except the root are also removed
        from the process table. The caller waits for the root."""
        members = self.members()
        processes = _processes(members[1:])
        trackers = [process for process in processes if _is_tracker(process)]
        spared = {process.pid for process in trackers}
        for pid in members:  # the root first, so that it does not react to the end of its workers
            if pid not in spared:
                _send(pid, signal.SIGKILL)
            _send(pid, signal.SIGCONT)
        psutil.wait_procs([process for process in processes if process.pid not in spared], timeout=_KILL_S)
        remove_shared_memory([pid for pid in members if pid not in spared])
        _end_all(trackers)

    def cpu_s(self) -> float:
        """Returns the CPU time that all processes have used. The time of an ended process is included if the system has
        added this time to the time of its parent."""
        total_s = 0.0
        for pid in self.members():
            with contextlib.suppress(psutil.Error):
                # User and system time of the process and of its ended children.
                total_s += sum(psutil.Process(pid).cpu_times()[:4])
        return total_s

    def memory_bytes(self, holder: int) -> int:
        """Returns the resident memory of the root plus the private memory of the other processes. Memory that the other
        processes share with the root therefore counts once. Memory that trials share with each other, mostly libraries,
        counts fully for each trial. The difference between the peak and the current memory of `holder` is added,
        because `holder` is paused at a point where the activations have been freed."""
        now_bytes = _resident_bytes(self.root) + sum(_private_bytes(pid) for pid in self.members()[1:])
        status = _read_sizes(Path(f"/proc/{holder}/status"))
        return now_bytes + max(0, status.get("VmHWM", 0) - status.get("VmRSS", 0))


@contextlib.contextmanager
def no_leftovers() -> Iterator[bool]:
    """At the end of the block, ends every descendant of this process that was started inside the block. On Linux the
    descendants are also ended if this process is killed. Yields whether this process adopts orphans."""
    janitor = Janitor()
    if sys.platform == "linux":
        janitor.start()
    before = set(descendants(os.getpid()))  # includes the janitor if this process is the first one of a container
    is_adopting = sys.platform == "linux" and mounts.adopt_orphans(wanted=True)
    try:
        yield is_adopting
    finally:
        with unbroken():
            _end_all(_processes(pid for pid in descendants(os.getpid()) if pid not in before))
        if is_adopting:
            mounts.adopt_orphans(wanted=False)
        janitor.dismiss()


def _end_all(processes: list[psutil.Process]) -> None:
    """Waits a little, then terminates the processes, then kills them. The first wait is for multiprocessing's resource
    tracker, which ends by itself after it has removed the shared memory of ended processes. Waiting also removes the
    entries of ended processes from the process table."""
    _, processes = psutil.wait_procs(processes, timeout=_NATURAL_S)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=_PATIENCE_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=_PATIENCE_S)


def own_processes() -> list[int]:
    """Returns this process and everything below it, adopted orphans included."""
    return [os.getpid(), *descendants(os.getpid())]


def descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from descendants(child)


def _children(pid: int) -> list[int]:
    """Returns the child processes. Uses the list that Linux keeps, because reading it is fast, and workers that are to
    be stopped continue until they are found."""
    folder = f"/proc/{pid}/task"
    found = b""
    try:
        for task in os.listdir(folder):
            with open(f"{folder}/{task}/children", "rb", buffering=0) as file:
                found += file.read()
    except OSError:
        with contextlib.suppress(psutil.Error):
            return [process.pid for process in psutil.Process(pid).children()]
        return []
    return [int(word) for word in found.split()]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def _state(pid: int) -> str:
    """Returns the state of a process: R, S or D if it runs or sleeps, T or t if it is stopped, Z or X if it has
    ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except OSError:
        pass
    try:
        return {"stopped": "T", "zombie": "Z"}.get(psutil.Process(pid).status(), "S")
    except psutil.Error:
        return "X"


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _processes(pids: Iterable[int]) -> list[psutil.Process]:
    """Returns the processes that still exist."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return found


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any(name in word for word in process.cmdline() for name in _TRACKERS)
    except psutil.Error:
        return False


def _private_bytes(pid: int) -> int:
    sizes = _read_sizes(Path(f"/proc/{pid}/smaps_rollup"))
    if "Private_Dirty" in sizes:
        return sizes["Private_Dirty"] + sizes["Private_Clean"]
    return _resident_bytes(pid)


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def _read_sizes(path: Path) -> dict[str, int]:
    """Parses lines such as "Pss:  1234 kB" into bytes."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3 and words[2] == "kB"}
