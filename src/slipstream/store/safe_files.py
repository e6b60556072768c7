"""Reads and writes files in folders that another person may have filled, such as `.slipstream` in a cloned repository
or a cache that several users can write to. Only real directories and regular files are used. Links are not followed,
except a link that the user typed as a path. A pipe or a device cannot block the reader."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
# Opening a pipe blocks until another process writes to it. With this flag the call returns, and the type of the file is
# checked afterwards.
NO_BLOCK: Final = getattr(os, "O_NONBLOCK", 0)
_BINARY: Final = getattr(os, "O_BINARY", 0)
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class UnsafeFileError(PermissionError):
    """A path is not safe to use. `strerror` says what is wrong with the path, and `filename` is the path."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(errno.EPERM, reason, str(path))


def open_directory(path: Path) -> Path:
    """Creates the directory if needed and returns its path. Raises UnsafeFileError unless it is a real directory that
    belongs to this user or to the owner of its parent directory. It must not be writable for more users than its parent
    directory."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o755)
    check_directory(path)
    return path


def check_directory(path: Path) -> None:
    """Raises the errors of `open_directory`, but creates nothing. Raises FileNotFoundError if the directory does not
    exist."""
    facts, around = path.lstat(), path.parent.stat()
    if not stat.S_ISDIR(facts.st_mode):
        raise UnsafeFileError(f"is {_kind(facts)}, not a directory", path)
    if facts.st_uid not in (_user_id(facts), around.st_uid):
        raise UnsafeFileError("belongs to another user", path)
    if facts.st_mode & ~around.st_mode & _WRITABLE_BY_OTHERS:
        raise UnsafeFileError("can be written by other users; chmod go-w makes it private", path)


def read_file(path: Path, limit_bytes: int, *, may_be_link: bool = False) -> bytes:
    """Returns the content of a regular file. `may_be_link` is for a path that the user typed."""
    descriptor = os.open(path, os.O_RDONLY | NO_BLOCK | _BINARY | (0 if may_be_link else _no_follow(path)))
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        _check_regular(facts, path)
        if facts.st_size > limit_bytes:
            raise UnsafeFileError(f"has {facts.st_size:,} bytes, more than the limit of {limit_bytes:,}", path)
        return file.read(facts.st_size)  # a larger number would be the size of the buffer


def write_file(path: Path, data: bytes) -> None:
    """Replaces the file as a whole. A link with this name is replaced, and its target stays as it is."""

    def rename(partial: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            raise UnsafeFileError("is a directory, not a file", path)
        os.replace(partial, path)

    publish_file(path, data, rename)


def publish_file(path: Path, data: bytes, publish: Callable[[Path], None]) -> None:
    """Writes `data` to a new file beside `path` and passes the new path to `publish`, which links or renames the file.
    If the new file still exists afterwards, it is removed."""
    # The name cannot be predicted, and O_EXCL never opens a file that already exists.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.{os.getpid()}.partial")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666), "wb") as file:
            file.write(data)
        publish(partial)
    finally:
        partial.unlink(missing_ok=True)


def append_file(path: Path, data: bytes) -> None:
    """Appends to a file. Creates the file if needed."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_BLOCK | _BINARY | _no_follow(path)
    with open(os.open(path, flags, 0o666), "ab") as file:
        facts = os.fstat(file.fileno())
        _check_regular(facts, path)
        if facts.st_nlink > 1:
            raise UnsafeFileError("has another name elsewhere (a hard link)", path)
        file.write(data)


def is_regular_file(path: Path) -> bool:
    """Whether the path is a regular file. A link to a regular file is not."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_private(facts: os.stat_result) -> bool:
    """Whether the file belongs to this user and nobody else can write to it."""
    return facts.st_uid == _user_id(facts) and not facts.st_mode & _WRITABLE_BY_OTHERS


def _check_regular(facts: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise UnsafeFileError(f"is {_kind(facts)}, not a file", path)


def _no_follow(path: Path) -> int:
    if path.is_symlink():  # the flag alone gives "Too many levels of symbolic links"
        raise UnsafeFileError("is a link", path)
    return NO_FOLLOW


def _kind(facts: os.stat_result) -> str:
    kinds: list[tuple[Callable[[int], bool], str]] = [
        (stat.S_ISLNK, "a link"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISREG, "a file"),
    ]
    return next((name for is_kind, name in kinds if is_kind(facts.st_mode)), "a device")


def _user_id(facts: os.stat_result) -> int:
    """Returns the id of this user. On a system without user ids, returns the owner of the file."""
    return os.geteuid() if hasattr(os, "geteuid") else facts.st_uid
