"""Counts steps while the script runs, for the progress display and for the schedule. The count may be off by a few. The
steps of the session are found afterwards from all events (steps.py)."""

from __future__ import annotations

from collections import Counter, deque

_INFERENCE = 16  # after this many calls of a module without a backward pass, the script is taken not to train
_RECENT = 8  # steps; a validation in one of them does not change their median


class LiveSteps:
    def __init__(self) -> None:
        self.num_steps = 0
        self.samples = 0
        self.closers: tuple[str, ...] = ("optimizer", "backward", "forward")  # kinds that may end a step
        self.learnt_from: Counter[int] = Counter()  # loader to the number of its batches with a backward pass
        self._updates: Counter[int] = Counter()
        self._asked: deque[int] = deque(maxlen=_RECENT)  # by step: the number of requested batches
        self._num_asked = 0
        self._last_loader = -1
        self._pending_samples = 0
        self._has_backward = False
        self._num_forwards = 0

    def see(self, kind: str, ident: int, samples: int) -> bool:
        """Counts an event. Returns True if it closed a step."""
        if kind == "input":
            self._last_loader = ident
            self._num_asked += 1
            self._pending_samples += samples
            return False
        if kind == "backward":
            if not self._has_backward:
                self._has_backward = True
                self.closers = ("optimizer", "backward")
                self.learnt_from.clear()
            if self._last_loader >= 0:
                self.learnt_from[self._last_loader] += 1
            return not self._updates and self._close()
        if kind == "optimizer":
            self._updates[ident] += 1
            self.closers = ("optimizer",)
            return (len(self._updates) == 1 or ident == self._rarest()) and self._close()
        if kind == "forward" and not self._has_backward:
            self._num_forwards += 1
            if self._last_loader >= 0:
                self.learnt_from[self._last_loader] += 1
            return self._num_forwards > _INFERENCE and self._close()
        return False

    def is_trained(self, loader: int) -> bool:
        """Whether a fair share of the training's batches comes from this loader."""
        return self.learnt_from[loader] * 10 >= max(self.learnt_from.values(), default=1)

    def batches_per_step(self) -> int:
        """The number of batches that a recent step requested, at least 1."""
        recent = sorted(self._asked)
        return max(1, recent[len(recent) // 2]) if recent else 1

    def _rarest(self) -> int:
        return min(self._updates, key=lambda ident: (self._updates[ident], -ident))

    def _close(self) -> bool:
        self.num_steps += 1
        self._asked.append(self._num_asked)
        self._num_asked = 0
        self.samples += self._pending_samples
        self._pending_samples = 0
        return True
