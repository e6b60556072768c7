"""Detects whether random numbers are drawn while batches are built, by comparing the states of generators before and
after some batches. States are only read, and nothing is drawn. The generators are the default ones and those that are
reachable from the dataset's attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slipstream.seams.rng_state import RngState, default_generators, is_generator

_NUM_BATCHES = 3  # Batches per process. Code that draws random numbers very likely does so within three batches.
_MAX_DEPTH = 3
_MAX_INSPECTED = 500


class RngUse:
    """Watches the generators of one dataset, in the process that builds its batches."""

    def __init__(self, dataset: Any) -> None:
        self._generators = [*default_generators(), *_kept_on(dataset)]
        self._before: RngState | None = None
        self._left = _NUM_BATCHES
        self.has_drawn = False

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def begin(self) -> None:
        self._before = RngState(self._generators)

    def end(self) -> bool:
        """Ends the watch of one batch. Returns whether the state of a generator has changed since `begin`."""
        has_moved = self._before is not None and self._before.has_moved()
        self.has_drawn |= has_moved
        self._left -= 1
        if self.is_over:  # The script's generators are no longer needed.
            self._generators, self._before = [], None
        return has_moved


def _kept_on(dataset: Any) -> Iterator[Any]:
    """Yields the generators in the attributes of the dataset. The attributes and lists of objects in these attributes,
    such as transforms and inner datasets, are searched too."""
    level, seen = [dataset], 0
    for _ in range(_MAX_DEPTH):
        level = [value for thing in level for value in _parts(thing)][: _MAX_INSPECTED - seen]
        seen += len(level)
        yield from (value for value in level if is_generator(value))


def _parts(thing: Any) -> list[Any]:
    if type(thing) in (list, tuple):
        return list(thing[:_MAX_INSPECTED])
    attributes = getattr(thing, "__dict__", None)
    return list(attributes.values()) if type(attributes) is dict else []
