"""The script's process, forked from one that has imported torch: serving forks, and what tells a forked process from
one that started cold. Linux only."""

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

READY = "--ready"  # the entry's argument, with the number of a socket: wait there
UNREADY = "unready"  # a file in the spool, with the reason: this rider must start cold
EXIT_UNREADY = 71
PID = struct.Struct("<i")
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


def serve(descriptor: int) -> str:
    """Waits for tickets, and forks for each. Returns in every child with its ticket's path; in this process never."""
    os.setpgid(0, 0)  # the terminal's Ctrl-C is for the relay
    mounts.die_with_parent(signal.SIGKILL)
    import torch._dynamo  # noqa: F401 - with torch: the first optimizer of any script imports it

    wire = socket.socket(fileno=descriptor)
    wire.send(PID.pack(os.getpid()))
    process_backend = os.getppid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(wire, 4096, 2)
        if not data:
            os._exit(0)
        if (child := _fork_for(process_backend)) == 0:
            wire.close()
            for number, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return os.fsdecode(data)
        for descriptor in descriptors:
            os.close(descriptor)
        wire.send(PID.pack(child))


def _fork_for(process_backend: int) -> int:
    """A grandchild whose parent ends at once is adopted by the relay, which can wait for it then. 0: we are it."""
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
    if os.getppid() != process_backend:  # it is gone, or does not adopt
        os._exit(1)
    return 0


class ForkSafety:
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
