"""Cleans up after a command that was killed. After `kill -9` a command cannot end the processes that its script
started. Without this module, processes in other sessions would continue, and the workspaces would stay.

A `Janitor` starts a small process that waits for the end of the command. If the command was killed, this process ends
all processes that have the command's mark among their environment variables. Then it removes workspaces that no process
holds, whether the command was killed or not. The process runs this file, so the file imports only the standard library
at its top."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

MARK = "SLIPSTREAM_COMMAND"  # environment variable with the mark; child processes inherit it
_DONE = b"x"
_SHARED_MEMORY = "/dev/shm"
_POLL_S = 0.1
_TRACKERS_S = 5.0
_MOST_S = 60.0  # a process that waits for a broken disk cannot be ended
# These processes remove shared memory and end by themselves when the processes that they serve have ended.
_TRACKERS = (b"resource_tracker", b"torch_shm_manager")


class Janitor:
    """Marks the processes that are started between `start` and `dismiss`, and starts the process that cleans up."""

    def __init__(self) -> None:
        self._former = os.environ.get(MARK)
        self._pipe = -1

    def start(self) -> None:
        mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        reader, self._pipe = os.pipe()
        try:
            # This process forks and ends at once, so the janitor is not a child of the command.
            subprocess.run(
                [sys.executable, "-I", "-S", __file__, mark],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except OSError:  # too many processes: nobody cleans up after a kill
            os.close(self._pipe)
            self._pipe = -1
        finally:
            os.close(reader)
        os.environ[MARK] = mark

    def dismiss(self) -> None:
        """Tells the janitor that the command has ended its processes itself. The janitor still removes workspaces."""
        if self._former is None:
            os.environ.pop(MARK, None)
        else:
            os.environ[MARK] = self._former
        if self._pipe >= 0:
            with contextlib.suppress(OSError):
                os.write(self._pipe, _DONE)
            os.close(self._pipe)
            self._pipe = -1


def main(mark: str) -> None:
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    if os.read(0, 1) != _DONE:
        _end_processes(f"{MARK}={mark}".encode())
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from slipstream.sandbox.temporary_folder import places, sweep

    for place in places():
        sweep(place)


def _end_processes(variable: bytes) -> None:
    start_s, killed = time.monotonic(), set[int]()
    while (found := list(_marked(variable))) and time.monotonic() - start_s < _MOST_S:
        is_patient = time.monotonic() - start_s < _TRACKERS_S
        for pid, command in found:
            if not (is_patient and any(name in command for name in _TRACKERS)):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        time.sleep(_POLL_S)
    remove_shared_memory(killed)


def remove_shared_memory(pids: Collection[int]) -> None:
    """Removes the shared memory of these processes, which were killed. A worker of a loader creates a file for every
    tensor that it hands over, and removes the file's name when the receiver has opened it."""
    owners = {str(pid) for pid in pids}
    with contextlib.suppress(OSError):  # there is no such folder
        for name in os.listdir(_SHARED_MEMORY):
            if name.startswith("torch_") and name.split("_")[1] in owners:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(_SHARED_MEMORY, name))


def _marked(variable: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the ids and command lines of the processes that have the variable."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
                if variable in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    yield int(entry), Path("/proc", entry, "cmdline").read_bytes()


if __name__ == "__main__":
    main(sys.argv[1])
