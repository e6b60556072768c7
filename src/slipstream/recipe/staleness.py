"""Differences between the tuning that made a recipe and the present run, as sentences. Only facts that are fast to read
are compared.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.machine.cgroups import read_limits
from slipstream.recipe.script_digest import script_digest

if TYPE_CHECKING:
    from slipstream.recipe.file import RecipeFile

CORES_APART = 0.5  # a smaller difference comes from rounding


def differences(
    file: RecipeFile, script: Sequence[str], cwd: str | Path | None = None, root: Path = Path("/")
) -> list[str]:
    """Returns sentences about what differs in the script, the machine and the software. `root` is the folder that
    contains /proc and /sys."""
    return [*_of_script(file, script, cwd or Path.cwd()), *_of_machine(file, root), *_of_software(file)]


def _of_script(file: RecipeFile, script: Sequence[str], cwd: str | Path) -> list[str]:
    if not file.script:
        return []
    then, now = _name(file.script), _name(script)
    if Path(then).name != Path(now).name:
        return [f"The recipe was measured on {then}, and this is {now}."]
    sentences = []
    digest = script_digest(script, cwd)
    if file.script_digest and digest and digest != file.script_digest:
        sentences.append(f"{now} has changed since the recipe was measured.")
    if _arguments(file.script) != _arguments(script):
        arguments = " ".join(_arguments(file.script))
        sentences.append(
            f"The recipe was measured {f'with other arguments: {arguments}' if arguments else 'without arguments'}."
        )
    return sentences


def _name(script: Sequence[str]) -> str:
    return " ".join(script[:2]) if script[:1] == ["-m"] else "".join(script[:1])


def _arguments(script: Sequence[str]) -> list[str]:
    return list(script[2:] if script[:1] == ["-m"] else script[1:])


def _of_machine(file: RecipeFile, root: Path) -> list[str]:
    sentences = []
    then = file.machine.get("cpu")
    known = _read(root / "proc/cpuinfo")
    if then and "model name" in known and str(then) not in known:
        sentences.append(f"The recipe was measured on another processor: {then}.")
    then_cores, cores = file.machine.get("cores"), _num_cores(root)
    if isinstance(then_cores, int | float) and abs(then_cores - cores) > CORES_APART:
        sentences.append(f"The recipe was measured with {then_cores:g} cores, and there are {cores:g}.")
    gpus = _gpu_names(root)
    then_gpus = [name for name in str(file.machine.get("gpus", "")).split(", ") if name]
    if gpus is not None and sorted(gpus) != sorted(then_gpus):
        sentences.append(f"The recipe was measured with other GPUs: {', '.join(then_gpus) or 'none'}.")
    return sentences


def _num_cores(root: Path) -> float:
    affine = getattr(os, "sched_getaffinity", None)
    cores = float(len(affine(0)) if affine is not None else os.cpu_count() or 1)
    quota = read_limits(root).cores
    return cores if quota is None else min(cores, quota)


def _gpu_names(root: Path) -> list[str] | None:
    """Returns the GPUs that NVIDIA's driver lists, or None if it lists none. Other GPUs may exist."""
    listed = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    names = [
        line.partition(":")[2].strip()
        for path in listed
        for line in _read(path).splitlines()
        if line.startswith("Model:")
    ]
    return names or None


def _of_software(file: RecipeFile) -> list[str]:
    sentences = []
    then, now = str(file.machine.get("torch", "")), _torch_version()
    if then and now and _release(then) != _release(now):
        sentences.append(f"The recipe was measured with torch {then}, and this is {now}.")
    then, now = str(file.machine.get("python", "")), platform.python_version()
    if then and then.split(".")[:2] != now.split(".")[:2]:
        sentences.append(f"The recipe was measured with Python {then}, and this is {now}.")
    return sentences


def _release(version: str) -> str:
    """Returns the version without its build, because 2.13.0+cpu and 2.13.0 are the same release."""
    return version.partition("+")[0]


def _torch_version() -> str:
    """Returns the version from torch's own file. An import of torch or importlib.metadata takes much longer."""
    found = find_spec("torch")
    if found is None or not found.origin:
        return ""
    for line in _read(Path(found.origin).with_name("version.py")).splitlines():
        if line.startswith("__version__ ="):
            return line.partition("=")[2].strip(" '\"")
    return ""


def _read(path: Path) -> str:
    try:
        return "\n".join(" ".join(line.split()) for line in path.read_text(errors="replace").splitlines())
    except OSError:
        return ""
