"""Stores a data set that the script downloads during a trial, for later trials. The copy is in `.slipstream/kept`. It
is deleted once the data set exists at its real place. Nothing else that a trial writes is kept."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slipstream.sandbox.overlap import is_below
from slipstream.sandbox.overlay import KeptDownload, OverlayPlan, is_deletion, written
from slipstream.store.safe_files import UnsafeFileError, check_directory, open_directory, read_file, write_file

MARK = "connected"  # file in the spool directory with the time of the trial's first connection, in ns of Unix time
_SMALL_BYTES = 1 << 20  # anything smaller is not a data set: configurations, locks, first log lines
_LIMIT_BYTES = 20 << 30
_LONGEST_PATH = 4096  # bytes that Linux allows
_FETCHERS = ("wget", "curl", "aws", "gsutil", "gcloud", "kaggle", "git", "rclone", "huggingface-cli", "hf")

# Entries that this process wrote. They are trusted even if they belong to a path outside the root.
_kept_by_this_process: set[str] = set()


def note_connections(spool: Path, *, count_loopback: bool = False) -> None:
    """Records when this process first connects to another machine or starts a program that downloads. Only for
    processes of trials, because an audit hook cannot be removed."""
    is_noted = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal is_noted
        if is_noted or event not in ("socket.connect", "subprocess.Popen", "os.system"):
            return
        if _is_connecting(event, args, count_loopback):
            is_noted = True
            try:
                (spool / MARK).write_text(str(time.time_ns()))
            except OSError:
                return  # then the download is not kept, and nothing else happens

    sys.addaudithook(hook)


def _is_connecting(event: str, args: tuple[Any, ...], count_loopback: bool) -> bool:
    if event == "socket.connect":
        return _is_remote(args[1], count_loopback)
    if event == "os.system":
        words = str(args[0]).split()
    else:
        words = [str(word) for word in args[1]] if isinstance(args[1], list | tuple) else str(args[1]).split()
    return any(word.rpartition("/")[2] in _FETCHERS for word in words[:3])


def _is_remote(address: Any, count_loopback: bool) -> bool:
    if not isinstance(address, tuple) or not address or not isinstance(address[0], str):
        return False  # a Unix socket
    try:
        is_loopback = ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        is_loopback = address[0] == "localhost"
    return count_loopback or not is_loopback


def kept_downloads(root: Path) -> list[KeptDownload]:
    """Returns the downloads of earlier trials. An entry is deleted if the real file system now has the download. It is
    also deleted if it names a path outside `root` and this process did not write it, because a cloned repository can
    contain any entry. An entry inside another entry is deleted too, because links in the outer entry could lead to
    another place."""
    entries = [(_read_entry(folder, root), folder) for folder in _entries(root)]
    found: list[KeptDownload] = []
    for item, folder in sorted(entries, key=lambda entry: entry[0].path if entry[0] else ""):  # outer ones come first
        if item is None or os.path.lexists(item.path) or any(is_below(item.path, outer.path) for outer in found):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            found.append(item)
    return found


def _entries(root: Path) -> list[Path]:
    folder = _folder(root)
    try:
        check_directory(folder.parent)
        check_directory(folder)
        with os.scandir(folder) as listing:
            return sorted(Path(entry.path) for entry in listing if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _read_entry(folder: Path, root: Path) -> KeptDownload | None:
    """Returns None for an entry that cannot be trusted or is not complete."""
    try:
        check_directory(folder)
        path = os.fsdecode(read_file(folder / "path", _LONGEST_PATH))
        tree = (folder / "tree").lstat()
    except OSError:
        return None
    if not (stat.S_ISDIR(tree.st_mode) or stat.S_ISREG(tree.st_mode)):
        return None
    is_plain = os.path.isabs(path) and "\0" not in path and os.path.realpath(path) == path
    is_ours = is_below(path, os.path.realpath(root)) or str(folder) in _kept_by_this_process
    return KeptDownload(path, str(folder / "tree")) if is_plain and is_ours else None


def keep_downloads(
    plan: OverlayPlan, root: Path, spool: Path, until_ns: int, small_bytes: int = _SMALL_BYTES
) -> list[str]:
    """Moves downloads from the trial's layers to the folder for kept downloads. New files count as downloads if the
    trial wrote them after its first connection and before `until_ns`. Small downloads are left out. Returns sentences
    for the user about the downloads."""
    try:
        since_ns = int((spool / MARK).read_text())
    except (OSError, ValueError):
        return []
    notes = []
    kept = (path for folder in _entries(root) for path in folder.rglob("*") if path.is_file())
    free_bytes = _LIMIT_BYTES - _size(kept)
    for top, files in _fetched(plan, since_ns, until_ns).items():
        num_bytes = _size(place for _, place in files)
        if num_bytes < small_bytes:
            continue
        if num_bytes > free_bytes:
            notes.append(
                f"{top} was downloaded ({_in_mb(num_bytes)}) but not kept, because the folder for downloads is full."
                " The next trial downloads it again; --forget-downloads empties the folder."
            )
            continue
        free_bytes -= num_bytes
        _keep(root, top, files)
        until = "the next check" if is_below(top, os.path.realpath(root)) else "the other processes of this command"
        notes.append(
            f"{top} was downloaded ({_in_mb(num_bytes)}) and is kept in {_folder(root)} for {until};"
            " --forget-downloads deletes it."
        )
    return notes


def forget_downloads(root: Path) -> None:
    for folder in _entries(root):
        shutil.rmtree(folder, ignore_errors=True)


def _folder(root: Path) -> Path:
    return root / ".slipstream" / "kept"


def _fetched(plan: OverlayPlan, since_ns: int, until_ns: int) -> dict[str, list[tuple[str, Path]]]:
    """Returns the new files, grouped by the topmost directory (or file) that the real file system does not have."""
    groups: dict[str, list[tuple[str, Path]]] = {}
    for path, place in written(plan):
        # Uses the change time, because unpacking an archive sets the modification time to an old one.
        if is_deletion(place) or not place.is_file() or not since_ns <= place.lstat().st_ctime_ns <= until_ns:
            continue
        top = _topmost_new(Path(path))
        if top is not None and not _is_temporary(top):
            groups.setdefault(str(top), []).append((path, place))
    return groups


def _topmost_new(path: Path) -> Path | None:
    if path.exists():
        return None
    while not path.parent.exists():
        path = path.parent
    return path


def _is_temporary(path: Path) -> bool:
    """Whether the path has a temporary name, which is different in every run."""
    return path.parent == Path(tempfile.gettempdir()) and path.name.startswith(("tmp", "pymp-", "torch_", "."))


def _keep(root: Path, top: str, files: list[tuple[str, Path]]) -> None:
    name = hashlib.sha256(os.fsencode(top)).hexdigest()[:16]
    folder = open_directory(open_directory(open_directory(_folder(root).parent) / _folder(root).name) / name)
    write_file(folder / "path", os.fsencode(top))
    _kept_by_this_process.add(str(folder))
    for path, place in files:
        target = folder / "tree" / Path(path).relative_to(top) if path != top else folder / "tree"
        if os.path.realpath(target) != os.path.join(os.path.realpath(folder), target.relative_to(folder)):
            raise UnsafeFileError("leads out of the folder through a link", target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(place, target)


def _size(paths: Iterable[Path]) -> int:
    return sum(path.lstat().st_size for path in paths)


def _in_mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
