"""A data set that the script downloads while it is tried out is kept for the next rider, outside the real file system,
and forgotten once the real one has it. Keeps nothing else that a rider writes."""

from __future__ import annotations

import hashlib
import ipaddress
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slipstream.runner.overlay import Kept, Plan, is_deletion, written

MARK = "connected"  # file in the spool directory: when the rider first reached out, in ns since the epoch
_SMALL_BYTES = 1 << 20  # less is not a data set: configurations, locks, first log lines
_LIMIT_BYTES = 20 << 30
_FETCHERS = ("wget", "curl", "aws", "gsutil", "gcloud", "kaggle", "git", "rclone", "huggingface-cli", "hf")


def note_connections(spool: Path, *, count_loopback: bool = False) -> None:
    """Writes down when this process first reaches out to another machine. For riders of check only: an audit hook
    cannot be taken back."""
    is_noted = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal is_noted
        if is_noted or event not in ("socket.connect", "subprocess.Popen", "os.system"):
            return
        if _is_reaching_out(event, args, count_loopback):
            is_noted = True
            try:
                (spool / MARK).write_text(str(time.time_ns()))
            except OSError:
                return  # the download is then lost, no more

    sys.addaudithook(hook)


def _is_reaching_out(event: str, args: tuple[Any, ...], count_loopback: bool) -> bool:
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


def kept_downloads(root: Path) -> list[Kept]:
    """Those of earlier riders; what exists for real by now is dropped."""
    found = []
    for folder in sorted(_folder(root).glob("*/")):
        try:
            item = Kept((folder / "path").read_text(), str(folder / "tree"))
        except OSError:
            continue
        if Path(item.path).exists() or not Path(item.tree).exists():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            found.append(item)
    return found


def keep_downloads(plan: Plan, root: Path, spool: Path, until_ns: int, small_bytes: int = _SMALL_BYTES) -> list[str]:
    """Moves what the rider fetched between its first connection and its first step out of its layers. Returns sentences
    about it."""
    try:
        since_ns = int((spool / MARK).read_text())
    except (OSError, ValueError):
        return []
    notes = []
    room_bytes = _LIMIT_BYTES - _size(path for path in _folder(root).rglob("*") if path.is_file())
    for top, files in _fetched(plan, since_ns, until_ns).items():
        num_bytes = _size(place for _, place in files)
        if num_bytes < small_bytes:
            continue
        if num_bytes > room_bytes:
            notes.append(f"{top} was downloaded ({_in_mb(num_bytes)}) but not kept: the folder for that is full.")
            continue
        room_bytes -= num_bytes
        _keep(root, top, files)
        notes.append(
            f"{top} was downloaded ({_in_mb(num_bytes)}) and is kept in {_folder(root)} for the next check;"
            " --forget-downloads deletes it."
        )
    return notes


def forget_downloads(root: Path) -> None:
    shutil.rmtree(_folder(root), ignore_errors=True)


def _folder(root: Path) -> Path:
    return root / ".slipstream" / "kept"


def _fetched(plan: Plan, since_ns: int, until_ns: int) -> dict[str, list[tuple[str, Path]]]:
    """New files by the topmost directory (or file) that the real file system does not have."""
    groups: dict[str, list[tuple[str, Path]]] = {}
    for path, place in written(plan):
        # Change time, because unpacking an archive sets the modification time to that of long ago.
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
    """Such a name is another one next time."""
    return path.parent == Path(tempfile.gettempdir()) and path.name.startswith(("tmp", "pymp-", "torch_", "."))


def _keep(root: Path, top: str, files: list[tuple[str, Path]]) -> None:
    folder = _folder(root) / hashlib.sha256(top.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "path").write_text(top)
    for path, place in files:
        target = folder / "tree" / Path(path).relative_to(top) if path != top else folder / "tree"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(place, target)


def _size(paths: Iterable[Path]) -> int:
    return sum(path.lstat().st_size for path in paths)


def _in_mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
