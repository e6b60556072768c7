"""A process that has imported torch and waits: riders of its environment are forked from it, and begin where a start of
their own would have come to after seconds. What a script could tell it by is looked for; then it starts cold after all.
Linux only, and not for accelerators: what their libraries do before a fork is not ours to know."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from slipstream.runner import mounts
from slipstream.runner.launch import interpreter_flags
from slipstream.runner.target import is_archive, is_module

READY = "--ready"  # the entry's argument, with the number of a socket: wait there
UNREADY = "unready"  # a file in the spool, with the reason: this rider must start cold
EXIT_UNREADY = 71
_PID = struct.Struct("<i")
_PATIENCE_S = 120.0  # for torch's import, on a cold disk
_POLL_S = 0.1
# Libraries read these while they are loaded. A script that sets one before it imports torch means it.
_READ_EARLY = (
    "ATEN", "BLIS", "DNNL", "GOMP", "GOTO", "KMP", "MKL", "NPY", "NUMEXPR", "OMP", "ONEDNN", "OPENBLAS", "PYTORCH",
    "TORCH", "VECLIB",
)  # fmt: skip
# Of these, what is read when it is needed, or for devices whose riders are never forked. Libraries set some of them
# unasked: Lightning, scikit-learn, torch's own compiler.
_READ_LATE = {
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCH_HOME",
}  # fmt: skip


class Ready:
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

    def fork(self, ticket: Path, stdout: int, stderr: int) -> Forked | None:
        """A rider with this ticket, as a child of ours. None: this process is gone."""
        try:
            socket.send_fds(self._wire, [os.fsencode(ticket)], [stdout, stderr])
        except OSError:
            return None
        pid = self._receive(lambda: None)
        if not pid:
            self.close()  # what it might still say would be taken for another rider's
        return Forked(pid) if pid else None

    def _receive(self, on_wait: Callable[[], None]) -> int:
        """The number of a process; 0: it is gone, or silent."""
        end_s = time.monotonic() + _PATIENCE_S
        while not select.select([self._wire], [], [], _POLL_S)[0]:
            on_wait()
            if time.monotonic() > end_s:
                return 0
        try:
            data = self._wire.recv(_PID.size)
        except OSError:
            return 0
        return int(_PID.unpack(data)[0]) if len(data) == _PID.size else 0

    def close(self) -> None:
        self._wire.close()
        self._process.kill()
        self._process.wait()


class Stable:
    """One for each environment that riders ask for, started when the first of them comes."""

    def __init__(self, entry: str, is_open: bool) -> None:
        self._entry = entry
        self._is_open = is_open
        self._known: dict[frozenset[tuple[str, str]], Ready | None] = {}  # None: it could not be had

    def has(self, environment: Mapping[str, str]) -> bool:
        """Nobody need wait for it."""
        return not self._is_open or frozenset(environment.items()) in self._known

    def of(self, environment: Mapping[str, str], on_wait: Callable[[], None]) -> Ready | None:
        """None: riders start cold."""
        key = frozenset(environment.items())
        if not self._is_open:
            return None
        if key not in self._known:
            ready = Ready(self._entry, environment)
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


class Forked:
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


# --- in that process -------------------------------------------------------------------------------------------------


def serve(descriptor: int) -> str:
    """Waits for tickets, and forks for each. Returns in every child with its ticket's path; in this process never."""
    os.setpgid(0, 0)  # the terminal's Ctrl-C is for the relay
    mounts.die_with_parent(signal.SIGKILL)
    import torch._dynamo  # noqa: F401 - with torch: the first optimizer of any script imports it

    wire = socket.socket(fileno=descriptor)
    wire.send(_PID.pack(os.getpid()))
    relay = os.getppid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(wire, 4096, 2)
        if not data:
            os._exit(0)
        if (child := _fork_for(relay)) == 0:
            wire.close()
            for number, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return os.fsdecode(data)
        for descriptor in descriptors:
            os.close(descriptor)
        wire.send(_PID.pack(child))


def _fork_for(relay: int) -> int:
    """A grandchild whose parent ends at once is adopted by the relay, which can wait for it then. 0: we are it."""
    reader, writer = os.pipe()
    between = os.fork()
    if between:
        os.close(writer)
        with open(reader, "rb") as pipe:
            data = pipe.read()
        os.waitpid(between, 0)
        return int(_PID.unpack(data)[0])
    os.close(reader)
    between = os.getpid()
    pid = os.fork()
    if pid:
        os.write(writer, _PID.pack(pid))
        os._exit(0)
    os.close(writer)
    while os.getppid() == between:
        time.sleep(0.0005)
    mounts.die_with_parent(signal.SIGKILL)
    if os.getppid() != relay:  # it is gone, or does not adopt
        os._exit(1)
    return 0


class Fairness:
    """Why a forked rider cannot pass for one that started cold, in words that follow "because"; "": it can. What is
    imported already cannot be told by variables, nor be found where the script would have found it, nor count the cores
    that it leaves itself."""

    def __init__(self) -> None:
        self._variables, self._folders, self._cores = _early(), set(sys.path), os.sched_getaffinity(0)
        self._imported = sorted({name for name in sys.modules if "." not in name} - {"__main__", "slipstream"})

    def obstacle_at_first(self, script: list[str]) -> str:
        """Before its first line."""
        if not is_module(script) and is_archive(script[0]):
            return "the script is a folder or an archive"
        return self._shadowing([Path.cwd() if is_module(script) else Path(script[0]).resolve().parent])

    def obstacle_by_now(self) -> str:
        """By its first step."""
        now = _early()
        changed = sorted(name for name in {*now, *self._variables} if now.get(name) != self._variables.get(name))
        if changed:
            return f"the script sets {changed[0]}, which torch reads while it is imported"
        if os.sched_getaffinity(0) != self._cores:
            return "the script changes the cores that it may use"
        return self._shadowing([Path(folder) for folder in sys.path if folder not in self._folders])

    def _shadowing(self, folders: list[Path]) -> str:
        found = next(((folder, name) for folder in folders for name in self.shadows(folder)), None)
        return f"torch imports a module with the name of {found[1]} in {found[0]}" if found else ""

    def shadows(self, folder: Path) -> list[str]:
        """Modules there that bear the name of one that is imported already: the script means its own."""
        return [
            name
            for name in self._imported
            if (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()
        ]


def refuse(spool: str, reason: str) -> NoReturn:
    """The relay starts this rider once more, cold."""
    (Path(spool) / UNREADY).write_text(reason)
    os._exit(EXIT_UNREADY)


def _early() -> dict[str, str]:
    named = ((name, value) for name, value in os.environ.items() if name.startswith(_READ_EARLY))
    return {name: value for name, value in named if name not in _READ_LATE}
