"""The process of the fork server. It imports torch and then forks one process for each trial. `ForkSafety` detects
scripts that would behave differently in a forked process than in a new one. For Linux only."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import NoReturn

from slipstream.launch.target import is_archive, is_module
from slipstream.sandbox import mounts

READY = "--ready"  # argument of the entry point that starts a fork server; the descriptor of its socket follows
UNREADY = "unready"  # a file in the spool that says why this trial must start in a new process
EXIT_UNREADY = 71
PID = struct.Struct("<i")
# Libraries read variables with these prefixes while they are loaded. If a script sets one before it imports torch, the
# variable must take effect.
_READ_EARLY = (
    "ATEN", "BLIS", "DNNL", "GOMP", "GOTO", "KMP", "MKL", "NPY", "NUMEXPR", "OMP", "ONEDNN", "OPENBLAS", "PYTORCH",
    "TORCH", "VECLIB",
)  # fmt: skip
# Exceptions: variables that are read only when they are needed, or that concern devices whose trials are never forked.
# Lightning, scikit-learn and torch's compiler set some of them on their own.
_READ_LATE = {
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCH_HOME",
}  # fmt: skip


def serve(descriptor: int) -> str:
    """Waits for tickets and forks a process for each. Returns only in the forked processes, with the ticket's path."""
    os.setpgid(0, 0)  # a Ctrl-C in the terminal must reach only the backend
    mounts.die_with_parent(signal.SIGKILL)
    import torch._dynamo  # noqa: F401 - imported together with torch, because every script's first optimizer imports it

    wire = socket.socket(fileno=descriptor)
    wire.send(PID.pack(os.getpid()))
    backend_pid = os.getppid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(wire, 4096, 2)
        if not data:
            os._exit(0)
        if (child := _fork_for(backend_pid)) == 0:
            wire.close()
            for number, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return os.fsdecode(data)
        for descriptor in descriptors:
            os.close(descriptor)
        wire.send(PID.pack(child))


def _fork_for(backend_pid: int) -> int:
    """Forks a grandchild, whose parent ends immediately. The backend's process adopts the grandchild and can therefore
    wait for it. Returns the id of the grandchild, or 0 in the grandchild itself."""
    reader, writer = os.pipe()
    between = os.fork()
    if between:
        os.close(writer)
        with open(reader, "rb") as pipe:
            data = pipe.read()
        os.waitpid(between, 0)
        return int(PID.unpack(data)[0])
    os.close(reader)
    between = os.getpid()
    pid = os.fork()
    if pid:
        os.write(writer, PID.pack(pid))
        os._exit(0)
    os.close(writer)
    while os.getppid() == between:
        time.sleep(0.0005)
    mounts.die_with_parent(signal.SIGKILL)
    if os.getppid() != backend_pid:  # the backend has ended, or does not adopt orphans
        os._exit(1)
    return 0


class ForkSafety:
    """Finds reasons why a forked trial would differ from one in a new process. `obstacle_at_first` and
    `obstacle_by_now` return a clause that follows "because", or "" if there is no reason. Modules that were imported
    before the fork ignore environment variables that the script sets. They are not looked up in the script's own import
    path, and they have already counted the available cores."""

    def __init__(self) -> None:
        self._variables, self._folders, self._cores = _early(), set(sys.path), os.sched_getaffinity(0)
        self._imported = sorted({name for name in sys.modules if "." not in name} - {"__main__", "slipstream"})

    def obstacle_at_first(self, script: list[str]) -> str:
        """Is called before the script's first line."""
        if not is_module(script) and is_archive(script[0]):
            return "the script is a folder or an archive"
        return self._shadowing([Path.cwd() if is_module(script) else Path(script[0]).resolve().parent])

    def obstacle_by_now(self) -> str:
        """Is called at the script's first step."""
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
        """Returns the names of modules in `folder` that were already imported from elsewhere. In a new process, the
        script would import the ones in `folder`."""
        return [
            name
            for name in self._imported
            if (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()
        ]


def refuse(spool: str, reason: str) -> NoReturn:
    """Ends this process. The backend then starts the trial again in a new process."""
    (Path(spool) / UNREADY).write_text(reason)
    os._exit(EXIT_UNREADY)


def _early() -> dict[str, str]:
    named = ((name, value) for name, value in os.environ.items() if name.startswith(_READ_EARLY))
    return {name: value for name, value in named if name not in _READ_LATE}
