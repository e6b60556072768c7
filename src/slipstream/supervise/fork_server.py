"""A process that has imported torch and waits: riders of its environment are forked from it, and begin where a start of
their own would have come to after seconds. What a script could tell it by is looked for; then it starts cold after all.
Linux only, and not for accelerators: what their libraries do before a fork is not ours to know."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from slipstream.launch.as_main import interpreter_flags
from slipstream.trial.forked import PID, READY

_PATIENCE_S = 120.0  # for torch's import, on a cold disk
_POLL_S = 0.1


class ForkServer:
    """Such a process, seen from the relay."""

    def __init__(self, entry: str, environment: Mapping[str, str]) -> None:
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nowhere = subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *interpreter_flags(), entry, READY, str(theirs.fileno())],
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno()],
            )

    def wait(self, on_wait: Callable[[], None]) -> bool:
        """Until it is ready. False: it will not be."""
        return self._receive(on_wait) != 0

    def fork(self, ticket: Path, stdout: int, stderr: int) -> ForkedProcess | None:
        """A rider with this ticket, as a child of ours. None: this process is gone."""
        try:
            socket.send_fds(self._wire, [os.fsencode(ticket)], [stdout, stderr])
        except OSError:
            return None
        pid = self._receive(lambda: None)
        if not pid:
            self.close()  # what it might still say would be taken for another rider's
        return ForkedProcess(pid) if pid else None

    def _receive(self, on_wait: Callable[[], None]) -> int:
        """The number of a process; 0: it is gone, or silent."""
        end_s = time.monotonic() + _PATIENCE_S
        while not select.select([self._wire], [], [], _POLL_S)[0]:
            on_wait()
            if time.monotonic() > end_s:
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
    """One for each environment that riders ask for, started when the first of them comes."""

    def __init__(self, entry: str, is_open: bool) -> None:
        self._entry = entry
        self._is_open = is_open
        self._known: dict[frozenset[tuple[str, str]], ForkServer | None] = {}  # None: it could not be had

    def has(self, environment: Mapping[str, str]) -> bool:
        """Nobody need wait for it."""
        return not self._is_open or frozenset(environment.items()) in self._known

    def of(self, environment: Mapping[str, str], on_wait: Callable[[], None]) -> ForkServer | None:
        """None: riders start cold."""
        key = frozenset(environment.items())
        if not self._is_open:
            return None
        if key not in self._known:
            ready = ForkServer(self._entry, environment)
            self._known[key] = ready if ready.wait(on_wait) else None
            if self._known[key] is None:
                ready.close()
        return self._known[key]

    def renew(self) -> None:
        """A fork has the addresses of the process that it comes from: those that come now shall have others."""
        for ready in self._known.values():
            if ready is not None:
                ready.close()
        self._known.clear()

    def close(self) -> None:
        """For good."""
        self._is_open = False
        self.renew()


class ForkedProcess:
    """A child of ours that we did not start, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody has waited for it already
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
