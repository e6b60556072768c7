"""Finds out from the events what the script's loop is doing: whether it evaluates, and whether a backward pass
follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class LoopState:
    """The state of the loop in one process. `fresh` is a list that the caller fills with new events."""

    def __init__(self, fresh: Sequence[tuple[Any, ...]]) -> None:
        self._fresh = fresh
        self._trained: set[int] = set()  # models that were seen in training mode
        self._evaluated: set[int] = set()  # models that were seen in evaluation mode
        self._was_evaluating = False  # at the last processed event
        self._awaited_backward = False

    def see_fresh(self) -> None:
        """Processes the events in the list. The caller removes them afterwards."""
        for event in self._fresh:
            if event[0] == "forward":
                (self._trained if event[8] else self._evaluated).add(event[1])
        self._was_evaluating, self._awaited_backward = self.is_evaluating(), self.awaits_backward()

    def is_evaluating(self) -> bool:
        """Whether the script evaluates now. It does if the last call of a model that is used in both modes was in
        evaluation mode, and no backward pass followed. Loss modules are ignored, because scripts never switch them to
        evaluation mode."""
        evaluated = self._evaluated.union(event[1] for event in self._fresh if event[0] == "forward" and not event[8])
        for event in reversed(self._fresh):
            if event[0] == "backward":
                return False
            if event[0] == "forward" and not event[8] and event[1] in self._trained:
                return True
            if event[0] == "forward" and event[8] and event[1] in evaluated:
                return False
        return self._was_evaluating

    def awaits_backward(self) -> bool:
        """Whether the last forward pass had gradients, and neither a backward pass nor an update has ended since."""
        for event in reversed(self._fresh):
            if event[0] in ("backward", "optimizer"):
                return False
            if event[0] == "forward":
                return bool(event[7])
        return self._awaited_backward
