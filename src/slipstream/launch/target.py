"""The program that the user wants to run, as typed: a file, a directory or zip archive with a `__main__`, or
`-m module`. This module checks the program before anything is started, and runs nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

LAUNCHERS = {"torch", "accelerate", "lightning", "deepspeed", "transformers"}  # with -m these packages run a script
_DATA_SUFFIXES = {".pt", ".pth", ".ckpt", ".safetensors", ".npy", ".npz", ".csv", ".json", ".yaml", ".yml", ".toml"}


def is_module(script: Sequence[str]) -> bool:
    return script[0] == "-m"


def is_archive(path: str) -> bool:
    """Whether the path is a directory or zip archive. Python runs the `__main__` inside it."""
    return Path(path).is_dir() or _is_zip(Path(path))


def protected_folders(cwd: Path, script: Sequence[str]) -> list[Path]:
    """Returns the folders in which a trial may change nothing: the working directory and the script's own folder. For
    a module, these are the folders of its top-level package and the folder in which Python finds the package."""
    if not is_module(script):
        return [cwd, *_folders_of_file(cwd / script[0])]
    name, *arguments = script[1:] or [""]
    if name.partition(".")[0] not in LAUNCHERS:
        return [cwd, *_folders_of_module(cwd, name)]
    scripts = [cwd / word for word in arguments if word.endswith(".py") and (cwd / word).is_file()]
    return [cwd, *(folder for path in scripts for folder in _folders_of_file(path))]


def _folders_of_file(path: Path) -> list[Path]:
    """Returns the folder of the file and, if the file is a link, also the folder of the real file."""
    return [path.parent, path.resolve().parent]


def _folders_of_module(cwd: Path, name: str) -> list[Path]:
    """Returns the folders of the module and of its top-level package. No package is imported, because an import would
    run the user's code."""
    top, *parts = name.split(".")
    spec = _find_top_level(cwd, top) if top else None
    if spec is None:
        return []
    packages = [Path(place) for place in spec.submodule_search_locations or []]
    holders = [package.parent for package in packages]
    folders = list(packages)
    if not packages and spec.has_location and spec.origin:
        holders = _folders_of_file(Path(spec.origin))
    for package in packages:
        place = package.joinpath(*parts)
        files = [place / "__main__.py", *([place.with_name(f"{place.name}.py")] if parts else [])]
        folders += [folder for file in files if file.exists() for folder in _folders_of_file(file)]
    # Installed packages share their folder with all other packages, so this folder is left out.
    return [*folders, *(holder for holder in holders if holder.name not in ("site-packages", "dist-packages"))]


def _find_top_level(cwd: Path, name: str) -> ModuleSpec | None:
    variable = [str(cwd / entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    spec = PathFinder.find_spec(name, [str(cwd), *variable, *sys.path])
    if spec is None:
        with contextlib.suppress(Exception):  # asks other finders, for example those of editable packages
            spec = importlib.util.find_spec(name)
    return spec


def display_name(script: Sequence[str]) -> str:
    """Returns the program's name for messages, such as train.py or pkg.train."""
    return script[1] if is_module(script) else script[0]


def file_stem(script: Sequence[str]) -> str:
    """Returns the program's name for names of files, such as train for train.py. The name of a module stays whole."""
    return script[1] if is_module(script) else Path(script[0]).stem


def refusal(script: Sequence[str]) -> str | None:
    """Returns a sentence for the user if this cannot be run as a Python program, else None."""
    if is_module(script):
        return None if len(script) > 1 and script[1] else "-m needs the name of a module, as in: -m package.train"
    path = Path(script[0])
    if not path.exists():
        return f"There is no file {script[0]!r} in {Path.cwd()}.{_suggestion(path)}"
    if path.is_dir():
        if (path / "__main__.py").is_file():
            return None
        return f"{script[0]!r} is a directory without a __main__.py, so it cannot be run.{_scripts_in(path)}"
    return _refuse_content(path, script[0])


def _refuse_content(path: Path, typed: str) -> str | None:
    if path.suffix == ".ipynb":
        return (
            f"{typed!r} is a notebook, which cannot be run as a script. Put the training in a cell that begins with"
            " `with slipstream.watch() as watched:` and end the cell with `watched` to show the report."
        )
    if not path.is_file() or path.suffix == ".pyc":  # a pipe, as in <(echo ...), or bytecode: python handles both
        return None
    try:
        source = path.read_bytes()
    except OSError as error:
        return f"{typed!r} cannot be read: {error.strerror}."
    if path.suffix in _DATA_SUFFIXES or (b"\0" in source and not _is_zip(path)):
        return f"{typed!r} is not a Python script. Give the file that you would give to python."
    if path.suffix not in (".py", ".pyw") and not _is_zip(path) and not _compiles(source, typed):
        return f"{typed!r} is not a Python script, because it does not compile as Python."
    return None


def _is_zip(path: Path) -> bool:
    if path.suffix == ".py":
        return False  # the usual case needs no import
    import zipfile

    return zipfile.is_zipfile(path)


def _compiles(source: bytes, name: str) -> bool:
    try:
        compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _suggestion(path: Path) -> str:
    if path.suffix == "" and path.with_suffix(".py").is_file():
        return f" Did you mean {path.with_suffix('.py')}?"
    if "." in path.name and path.suffix != ".py" and Path(path.name.replace(".", "/") + ".py").is_file():
        return f" Did you mean -m {path.name}?"
    return ""


def _scripts_in(path: Path) -> str:
    scripts = sorted(entry.name for entry in path.glob("*.py"))[:4]
    return f" It has {', '.join(scripts)}." if scripts else ""
