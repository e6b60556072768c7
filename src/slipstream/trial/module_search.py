"""Decides when the outermost modules are searched for: at the start, after a new loader or optimizer, and again after
some steps, for modules that are called late."""

from __future__ import annotations

from slipstream.seams.listener import Shortcut
from slipstream.seams.modules.module import ModuleSeam

_SEARCHES = (16, 64, 256, 1024)  # steps after which the outermost modules are searched for again, during one step


class ModuleSearch:
    def __init__(self, modules: ModuleSeam, shortcut: Shortcut) -> None:
        self._modules = modules
        self._shortcut = shortcut
        self._num_steps = 0  # since the search was started
        self._settles_at = 2  # number of steps at which the search ends; 0 if it has ended

    @property
    def is_settled(self) -> bool:
        """Whether no search is running and the next one is not due soon."""
        return self._num_steps > _SEARCHES[0] and not self._settles_at

    def start(self) -> None:
        self._num_steps = 0
        self._settles_at = 2
        self._modules.search()

    def on_steps(self, num: int) -> bool:
        """Counts steps, and starts or ends a search. Returns whether a search has ended."""
        before, self._num_steps = self._num_steps, self._num_steps + num
        if 0 < self._settles_at <= self._num_steps:
            self._settles_at = 0
            self._modules.settle()
            return True
        if any(before < mark <= self._num_steps for mark in _SEARCHES):
            self._settles_at = self._num_steps + 1
            self._modules.search()
            self._shortcut.due_ns = 0  # a search is expensive: end it at the next step
        return False
