"""Builds the simulated device with the user's compiler and keeps it in the user's cache. The first build takes less
than a minute. The library is built again for another version of torch, another compiler or other sources."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from slipstream.store.cache_folder import cache_folder
from slipstream.store.safe_files import is_private

_SOURCES = Path(__file__).parent / "native"
_LIBRARY = "libsimulated_cuda.so"
_LONGEST_S = 600.0  # Longest time of a build. It takes less than a minute if no other program uses the cores.
# Without optimisation the build takes a third of the time. The kernels are torch's own and are optimised.
_FLAGS = ("-std=c++20", "-O0", "-g0", "-fPIC", "-shared", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DFMT_HEADER_ONLY")
_ENTRY_POINT = "[torch.backends]\nsimulated_cuda = slipstream.testing.simulated_cuda.install:install_from_environment\n"
_METADATA = "Metadata-Version: 2.1\nName: slipstream-simulated-cuda\nVersion: 1\n"


class BuildError(Exception):
    """The device cannot be built. The message is the reason, as a clause."""


def find_compiler() -> list[str]:
    """Returns the command that compiles C++, or [] if there is none."""
    for command in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        words = shlex.split(command)
        found = shutil.which(words[0]) if words else None
        if found:
            return [found, *words[1:]]
    return []


def build() -> Path:
    """Returns the library, and compiles it first if necessary. Raises `BuildError`."""
    if platform.system() != "Linux":
        raise BuildError("it needs Linux")
    compiler = find_compiler()
    if not compiler:
        raise BuildError("there is no C++ compiler (c++, g++ or clang++) on this machine")
    torch_folder = _torch_folder()
    root = cache_folder() / "simulated-cuda"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(root.lstat()):
        raise BuildError(f"others may write into {root}")
    folder = root / _key(compiler, torch_folder)
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # If two processes need the library, one builds it and the other waits.
        if not (folder / _LIBRARY).exists():
            _build_into(folder, compiler, torch_folder)
    return folder / _LIBRARY


def _build_into(folder: Path, compiler: list[str], torch_folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        _compile(Path(made) / _LIBRARY, compiler, torch_folder)
        about = Path(made) / "slipstream_simulated_cuda-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(_METADATA)
        (about / "entry_points.txt").write_text(_ENTRY_POINT)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)


def _compile(made: Path, compiler: list[str], torch_folder: Path) -> None:
    include, lib = torch_folder / "include", torch_folder / "lib"
    folders = (include, include / "torch" / "csrc" / "api" / "include", include / "kineto")
    command = [
        *compiler,
        *_FLAGS,
        *(f"-I{each}" for each in folders),
        *(str(_SOURCES / name) for name in ("device.cpp", "profiler.cpp")),
        *("-o", str(made), f"-L{lib}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}"),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_S, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as fault:
        lines = fault.stderr.decode(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line] or lines or [str(fault)]
        raise BuildError(f"{compiler[0]} cannot compile it: {errors[0].strip()}") from fault
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise BuildError(f"{compiler[0]} cannot compile it: {fault}") from fault


def _torch_folder() -> Path:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise BuildError("torch is not installed")
    return Path(found.origin).parent


def _key(compiler: list[str], torch_folder: Path) -> str:
    sources = sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp")])
    facts = os.stat(compiler[0])
    torch_version = (torch_folder / "version.py").read_bytes()
    about = repr((compiler, facts.st_size, facts.st_mtime_ns, _FLAGS, _ENTRY_POINT, str(torch_folder), torch_version))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources) + about.encode()).hexdigest()[:16]
