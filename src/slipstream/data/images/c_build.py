"""Compiles our C code once with the system's compiler into the cache folder and loads it from there. A file that
another user could have written is not loaded. A file that has changed since it was compiled is not loaded either,
because a damaged library may crash the process."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from slipstream.store.cache_folder import cache_folder
from slipstream.store.safe_files import is_private

_COMPILED = "compiled"
_LONGEST_S = 120.0
_DIGITS = 16  # of a digest in a file name
_FLAGS = ("-O3", "-shared", "-fPIC")
# The C code must round as Pillow does. A fused multiply-add rounds once, and two instructions round twice. Builds of
# Pillow for x86-64 do not use fused multiply-adds, so they are switched off here. On other machines the default of the
# compiler decides, for Pillow and for us.
_UNFUSED = ("-ffp-contract=off",) if platform.machine().lower() in ("x86_64", "amd64") else ()


class CompileError(Exception):
    """The library cannot be built. The message is the reason, as a clause."""


def find_compiler() -> list[str]:
    """Returns the command that compiles C, or [] if there is none."""
    for command in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        try:
            words = shlex.split(command)
        except ValueError:  # an open quotation mark
            continue
        found = shutil.which(words[0]) if words else None
        if found:
            return [found, *words[1:]]
    return []


def load_library(source: Path) -> ctypes.CDLL:
    """Returns the loaded library. It is compiled first if necessary. Raises `CompileError`."""
    compiler = find_compiler()
    if not compiler:
        raise CompileError("there is no C compiler (cc, gcc or clang) on this machine")
    stem = f"{source.stem}-{_key(source, compiler)}"
    try:
        return _load_kept(cache_folder() / _COMPILED, stem, source, compiler)
    except OSError:  # the folder is not writable, or is mounted without permission to execute
        return _load_once(source, compiler)


def _load_kept(folder: Path, stem: str, source: Path, compiler: list[str]) -> ctypes.CDLL:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(folder.lstat()):
        raise PermissionError(f"others may write into {folder}")
    for found in sorted(folder.glob(f"{stem}-*.so")):
        if is_private(found.lstat()) and found.stem.endswith(f"-{_digest(found)}"):
            return ctypes.CDLL(str(found))
        found.unlink()
    with tempfile.TemporaryDirectory(dir=folder) as build_folder:
        made = _compile(source, compiler, Path(build_folder) / f"{stem}.so")
        kept = folder / f"{stem}-{_digest(made)}.so"
        os.replace(made, kept)
    return ctypes.CDLL(str(kept))


def _load_once(source: Path, compiler: list[str]) -> ctypes.CDLL:
    """Compiles into a temporary folder and returns the loaded library. Its file is not needed any more."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return ctypes.CDLL(str(_compile(source, compiler, Path(folder) / f"{source.stem}.so")))
    except OSError as fault:
        raise CompileError(f"the compiled {source.name} cannot be loaded: {fault}") from fault


def _compile(source: Path, compiler: list[str], made: Path) -> Path:
    command = [*compiler, *_FLAGS, *_UNFUSED, str(source), "-o", str(made), "-lm"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_S, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as fault:
        said = fault.stderr.decode(errors="replace").strip().splitlines()
        raise CompileError(f"{compiler[0]} cannot compile {source.name}: {said[0] if said else fault}") from fault
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise CompileError(f"{compiler[0]} cannot compile {source.name}: {fault}") from fault
    made.chmod(0o700)
    return made


def _key(source: Path, compiler: list[str]) -> str:
    # The source may include any of the headers.
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    facts = os.stat(compiler[0])
    about = repr((compiler, facts.st_size, facts.st_mtime_ns, _FLAGS, _UNFUSED, platform.machine()))
    return hashlib.sha256(b"".join(texts) + about.encode()).hexdigest()[:_DIGITS]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]
