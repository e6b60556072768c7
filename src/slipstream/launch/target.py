"""The program that the user wants to run, as typed: a file, a directory or zip archive with a `__main__`, or
`-m module`. This module checks it before anything is started and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_DATA_SUFFIXES = {".pt", ".pth", ".ckpt", ".safetensors", ".npy", ".npz", ".csv", ".json", ".yaml", ".yml", ".toml"}


def is_module(script: Sequence[str]) -> bool:
    return script[0] == "-m"


def is_archive(path: str) -> bool:
    """Whether the path is a directory or zip archive. Python runs the `__main__` inside it."""
    return Path(path).is_dir() or _is_zip(Path(path))


def protected_folders(cwd: Path, script: Sequence[str]) -> list[Path]:
    """Returns the folders in which a trial may change nothing: the working directory and the script's own folder."""
    return [cwd] if is_module(script) else [cwd, (cwd / script[0]).resolve().parent]


def display_name(script: Sequence[str]) -> str:
    """Returns the program's name for messages: train.py, or pkg.train."""
    return script[1] if is_module(script) else script[0]


def file_stem(script: Sequence[str]) -> str:
    """Returns the program's name for names of files: train, or pkg.train, whose last part is not a suffix."""
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
        return (
            f"{script[0]!r} is a directory without a __main__.py, so there is nothing to run in it.{_scripts_in(path)}"
        )
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
        return f"{typed!r} is not a Python script: it does not compile as one."
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
