"""Counts steps while the script runs, from the events of the seams. Check, race and run count with this class. The
steps of a session are found afterwards from all events (steps.py)."""

from __future__ import annotations

from collections import Counter, deque
from typing import Literal

Leader = Literal["rarest", "first"]

_INFERENCE = 16  # after more calls of modules than this without a backward pass, the script is taken not to train
_RECENT = 8  # number of recent steps; a validation in one of them does not change the median of their batches
_FINISHED = 200  # updates of other optimizers in a row after which the leader counts as finished


class StepCounter:
    def __init__(
        self, kinds: tuple[str, ...] = ("optimizer", "backward", "forward"), leader: Leader = "rarest"
    ) -> None:
        """`kinds` are the kinds of events that may end a step. Once an event of one kind is seen, events of later kinds
        no longer end a step. `leader` says which of several optimizers ends a step: "rarest" is the one that has
        stepped most rarely so far, "first" the one that stepped first. "first" is known at the first update, so all
        trials of a race agree on it."""
        self.num_steps = 0
        self.samples = 0  # number of samples that were trained on
        self.closers = kinds  # kinds that may still end a step
        self.learnt_from: Counter[int] = Counter()  # loader to the number of its batches with a backward pass
        self._leader_rule = leader
        self._asked: deque[int] = deque(maxlen=_RECENT)  # by step: the number of requested batches
        self._num_asked = 0
        self._updates: Counter[int] = Counter()
        self._num_of_others = 0  # updates by other optimizers since the last one of the leader
        self._last_loader = -1
        self._pending_samples = 0
        self._has_backward = False
        self._num_forwards = 0

    def see(self, kind: str, ident: int, samples: int = 0) -> bool:
        """Counts an event. Returns True if it closed a step."""
        if kind == "input":
            if ident != self._last_loader and self.num_steps:
                self._pending_samples = 0  # of another loader: nothing trained on them, as in a validation
            self._last_loader = ident
            self._num_asked += 1
            self._pending_samples += samples
        elif kind == "backward" or (kind == "forward" and not self._has_backward):
            self._note_learning(kind)
        if kind not in self.closers:
            return False
        if kind != self.closers[-1]:
            self.closers = self.closers[: self.closers.index(kind) + 1]
        if kind == "optimizer":
            self._settle()
            is_closed = self._is_leader(ident)
        else:
            is_closed = kind != "forward" or len(self.closers) == 1 or self._num_forwards > _INFERENCE
        if is_closed:
            self._settle()
            self.num_steps += 1
            self._asked.append(self._num_asked)
            self._num_asked = 0
        return is_closed

    def forget(self, optimizer: int) -> None:
        """Is called when the optimizer no longer exists."""
        self._updates.pop(optimizer, None)

    def is_trained(self, loader: int) -> bool:
        """Whether the script trains on batches of this loader: on at least a tenth as many as on batches of the loader
        with the most."""
        return self.learnt_from[loader] * 10 >= max(self.learnt_from.values(), default=1)

    def batches_per_step(self) -> int:
        """Returns the median number of batches that recent steps requested, at least 1."""
        recent = sorted(self._asked)
        return max(1, recent[len(recent) // 2]) if recent else 1

    def _note_learning(self, kind: str) -> None:
        if kind == "forward":
            self._num_forwards += 1
        elif not self._has_backward:
            self._has_backward = True
            self.learnt_from.clear()
        if self._last_loader >= 0:
            self.learnt_from[self._last_loader] += 1

    def _is_leader(self, optimizer: int) -> bool:
        updates = self._updates
        updates[optimizer] += 1
        if self._leader_rule == "first":
            leader = next(iter(updates))
        else:
            leader = min(updates, key=lambda ident: (updates[ident], -ident))
        if leader != optimizer:
            self._num_of_others += 1
            if self._num_of_others < _FINISHED:
                return False
            self._updates = Counter({optimizer: 1})
        self._num_of_others = 0
        return True

    def _settle(self) -> None:
        self.samples += self._pending_samples
        self._pending_samples = 0
