"""Reads the limits of a container: the CPU quota and the memory limit. Linux sets these limits on control groups
(cgroups, version 1 or 2). The strictest limit counts, of this process's group and of all groups above it. The files are
read below a given root, so that tests can use their own files. A missing file is not an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

# Version 1 writes "no limit" as the largest page-aligned integer. No real limit is near it.
UNLIMITED_BYTES = 1 << 60


class CgroupMount(msgspec.Struct, frozen=True):
    """One line of /proc/self/mountinfo."""

    device: str  # "254:0"
    root: str  # the part of the file system that is mounted
    point: str  # the folder where it is mounted
    kind: str  # the type of the file system: ext4, overlay, cgroup2
    source: str  # /dev/vda
    options: list[str]


class CgroupLimits(msgspec.Struct, frozen=True):
    cores: float | None = None
    memory_bytes: int | None = None


def parse_mounts(text: str) -> list[CgroupMount]:
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if not separator or len(fields) < 6 or len(tail) < 3:
            continue
        options = fields[5].split(",") + tail[2].split(",")
        mounts.append(
            CgroupMount(fields[2], unescape(fields[3]), unescape(fields[4]), tail[0], unescape(tail[1]), options)
        )
    return mounts


def unescape(text: str) -> str:
    """Decodes the octal numbers that mountinfo writes for white space and backslashes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def parse_memberships(text: str) -> dict[str, str]:
    """Returns the path of the group of each controller, from /proc/self/cgroup. In version 2 the name is empty."""
    memberships = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            memberships[controller] = path
    return memberships


def read_limits(root: Path = Path("/")) -> CgroupLimits:
    memberships = parse_memberships(_read(root / "proc/self/cgroup"))
    mounts = parse_mounts(_read(root / "proc/self/mountinfo"))
    cores: list[float] = []
    sizes: list[int] = []
    for mount in mounts:
        if mount.kind == "cgroup2" and "" in memberships:
            for group in _groups(root, mount, memberships[""]):
                cores += _quota(_read(group / "cpu.max").split())
                sizes += _size(_read(group / "memory.max"))
        elif mount.kind == "cgroup" and "cpu" in mount.options and "cpu" in memberships:
            for group in _groups(root, mount, memberships["cpu"]):
                cores += _quota([_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")])
        elif mount.kind == "cgroup" and "memory" in mount.options and "memory" in memberships:
            for group in _groups(root, mount, memberships["memory"]):
                sizes += _size(_read(group / "memory.limit_in_bytes"))
    return CgroupLimits(min(cores, default=None), min(sizes, default=None))


def _groups(root: Path, mount: CgroupMount, path: str) -> Iterator[Path]:
    """Yields the directories of this process's group and of all visible groups above it."""
    point = root / mount.point.lstrip("/")
    inner = PurePosixPath(path)
    if inner.is_relative_to(mount.root):
        inner = inner.relative_to(mount.root)
    parts = [part for part in inner.parts if part not in ("/", "..")]
    for length in range(len(parts), -1, -1):
        group = point.joinpath(*parts[:length])
        if group.is_dir():
            yield group


def _quota(words: list[str]) -> list[float]:
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _size(text: str) -> list[int]:
    return [int(text)] if text.isdigit() and 0 < int(text) < UNLIMITED_BYTES else []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
