"""Lists the files that trials leave in places that no overlay covers: shared memory and /run. An overlay over shared
memory would slow down the hand-over of batches. /run contains sockets of other programs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

_PLACES: Final = ("/dev/shm", "/run")
_OF_THE_SYSTEM: Final = ("/run/systemd", "/run/udev")
_OURS: Final = "slipstream-"  # workspaces, which their commands remove


class UncoveredPlaces:
    """Compares the files with those that existed when this object was created. Create it before the trials start."""

    def __init__(self) -> None:
        self._before = set(_own_files())

    def new_files(self) -> list[str]:
        """Returns this user's files that did not exist before. Other programs of the user may have created some of
        them."""
        return sorted(set(_own_files()) - self._before)


def _own_files() -> Iterator[str]:
    user = os.geteuid()
    for place in _PLACES:
        for folder, folders, names in os.walk(place):
            if folder in _OF_THE_SYSTEM:
                folders.clear()
                continue
            folders[:] = [name for name in folders if not name.startswith(_OURS)]
            for name in names:
                path = os.path.join(folder, name)
                try:
                    facts = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISREG(facts.st_mode) and facts.st_uid == user:
                    yield path
