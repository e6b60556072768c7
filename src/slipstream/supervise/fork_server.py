"""The parent side of a fork server. A fork server is a process that has imported torch. It forks a process for each
trial that needs its environment variables. A forked trial saves the seconds that importing torch takes. A script that
would behave differently in a forked process starts in a new process instead (trial/forked.py). Fork servers work only
on Linux. They are not used with accelerators, because the state of accelerator libraries may not survive a fork."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from slipstream.launch.as_main import interpreter_flags
from slipstream.trial.forked import PID, READY

_PATIENCE_S = 120.0  # importing torch can take this long if its files are not in the page cache


class ForkServer:
    """The backend's interface to one server process."""

    def __init__(self, entry: str, environment: Mapping[str, str]) -> None:
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        devnull = subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *interpreter_flags(), entry, READY, str(theirs.fileno())],
                stdin=devnull,
                stdout=devnull,
                stderr=devnull,
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno()],
            )

    def wait(self) -> bool:
        """Waits until the server is ready. Returns False if it failed to start."""
        return self._receive() != 0

    def fork(self, ticket: Path, stdout: int, stderr: int) -> ForkedProcess | None:
        """Forks a trial with this ticket. The trial becomes a child of this process. Returns None if the server has
        ended or does not answer."""
        try:
            socket.send_fds(self._wire, [os.fsencode(ticket)], [stdout, stderr])
        except OSError:
            return None
        pid = self._receive()
        if not pid:
            self.close()  # a late answer would be read as the answer to the next request
        return ForkedProcess(pid) if pid else None

    def _receive(self) -> int:
        """Returns the process id that the server sent, or 0 if the server has ended or does not answer."""
        if not select.select([self._wire], [], [], _PATIENCE_S)[0]:
            return 0
        try:
            data = self._wire.recv(PID.size)
        except OSError:
            return 0
        return int(PID.unpack(data)[0]) if len(data) == PID.size else 0

    def close(self) -> None:
        self._wire.close()
        self._process.kill()
        self._process.wait()


class ForkServerPool:
    """One fork server for each set of environment variables, started when the first trial needs it."""

    def __init__(self, entry: str, is_open: bool) -> None:
        self._entry = entry
        self._is_open = is_open
        self._known: dict[frozenset[tuple[str, str]], ForkServer | None] = {}  # None: the server could not be started

    def has(self, environment: Mapping[str, str]) -> bool:
        """Whether `of` returns without waiting."""
        return not self._is_open or frozenset(environment.items()) in self._known

    def of(self, environment: Mapping[str, str]) -> ForkServer | None:
        """Returns the server for these variables, or None if trials must start in new processes."""
        key = frozenset(environment.items())
        if not self._is_open:
            return None
        if key not in self._known:
            server = ForkServer(self._entry, environment)
            self._known[key] = server if server.wait() else None
            if self._known[key] is None:
                server.close()
        return self._known[key]

    def close(self) -> None:
        """Ends all servers. Afterwards the pool starts no more."""
        self._is_open = False
        for server in self._known.values():
            if server is not None:
                server.close()
        self._known.clear()


class ForkedProcess:
    """A child of this process that a fork server has started. It has the methods of `subprocess.Popen` that trials
    use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another part of this process has waited for it already
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end_s = None if timeout is None else time.monotonic() + timeout
        pause_s = 0.0005
        while (code := self.poll()) is None:
            if end_s is not None and timeout is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        return code
