"""Finds out whether two folders have files in common, because one contains the other or both contain the same folder.
Follows links, and recognises folders and file systems that are mounted a second time at another place."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

from slipstream.sandbox import mounts


class _Place(NamedTuple):
    """A folder: its device, and its path on the device, wherever the device is mounted."""

    device: str
    path: str

    def contains(self, other: _Place) -> bool:
        return self.device == other.device and is_below(other.path, self.path)


def is_below(path: str, top: str) -> bool:
    """Whether `path` is `top` or is inside it, by their names alone."""
    return path == top or path.startswith(top.rstrip("/") + "/")


def is_same(one: str | Path, other: str | Path) -> bool:
    try:
        return str(one) == str(other) or os.path.samefile(one, other)
    except OSError:  # one of them does not exist yet
        return False


class Overlaps:
    """Compares folders, with the mounts that existed when this object was created."""

    def __init__(self) -> None:
        self._mounts: list[mounts.Mount] = []
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._mounts = mounts.mounts()

    def overlap(self, one: str | Path, other: str | Path) -> bool:
        """Whether the two are the same, one contains the other, or both contain the same folder."""
        if self.contains(one, other) or self.contains(other, one):
            return True
        others = self._places(other)
        return any(a.contains(b) or b.contains(a) for a in self._places(one) for b in others)

    def contains(self, folder: str | Path, path: str | Path) -> bool:
        """Whether `path` is `folder` or is inside it."""
        top, real = os.path.realpath(folder), Path(os.path.realpath(path))
        if any(is_same(top, place) for place in (real, *real.parents)):
            return True
        inside = self._places(path)[0]
        return any(place.contains(inside) for place in self._places(folder))

    def _places(self, path: str | Path) -> list[_Place]:
        """Returns the place of the folder, then the places of all that is mounted inside the folder."""
        real = os.path.realpath(path)
        around = [mount for mount in self._mounts if is_below(real, mount.path)]
        if not around:
            return [_Place("", real)]
        nearest = max(around, key=lambda mount: len(mount.path))
        own = os.path.normpath(os.path.join(nearest.root, os.path.relpath(real, nearest.path)))
        inner = [mount for mount in self._mounts if mount is not nearest and is_below(mount.path, real)]
        return [_Place(nearest.device, own), *(_Place(mount.device, mount.root) for mount in inner)]
