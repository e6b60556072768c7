"""Whether two folders have files in common: one contains the other, also through links and through file systems or
folders that are mounted a second time somewhere else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from slipstream.sandbox import mounts


class _Place(NamedTuple):
    """A folder as its file system knows it, wherever that is mounted."""

    device: str
    path: str

    def contains(self, other: _Place) -> bool:
        return self.device == other.device and is_below(other.path, self.path)


def is_below(path: str, top: str) -> bool:
    """Whether `path` is `top` or is inside it, by their names alone."""
    return path == top or path.startswith(top.rstrip("/") + "/")


def overlap(one: str | Path, other: str | Path) -> bool:
    """Whether the two are the same, one contains the other, or both contain the same folder."""
    if contains(one, other) or contains(other, one):
        return True
    others = _places(other)
    return any(place.contains(place2) or place2.contains(place) for place in _places(one) for place2 in others)


def contains(folder: str | Path, path: str | Path) -> bool:
    """Whether `path` is `folder` or is inside it."""
    real = Path(os.path.realpath(path))
    if any(is_same(os.path.realpath(folder), place) for place in (real, *real.parents)):
        return True
    inside = _places(path)[0]
    return any(place.contains(inside) for place in _places(folder))


def is_same(one: str | Path, other: str | Path) -> bool:
    try:
        return str(one) == str(other) or os.path.samefile(one, other)
    except OSError:  # one of them does not exist yet
        return False


def _places(path: str | Path) -> list[_Place]:
    """The place of the folder, then those of all that is mounted inside it."""
    real = os.path.realpath(path)
    if sys.platform != "linux":
        return [_Place("", real)]
    known = mounts.mounts()
    outer = max((mount for mount in known if is_below(real, mount.path)), key=lambda mount: len(mount.path))
    own = os.path.normpath(f"{outer.root}/{os.path.relpath(real, outer.path)}")
    inner = [mount for mount in known if mount is not outer and is_below(mount.path, real)]
    return [_Place(outer.device, own), *(_Place(mount.device, mount.root) for mount in inner)]
