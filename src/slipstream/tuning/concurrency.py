"""Limits how many challengers take part in a race at the same time: few at first, and more after some rounds or if
starts turn out to be cheap. It starts no trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.tuning.comparison import LEADING_ROUNDS, Comparison


class ConcurrencyLimit:
    """The number of challengers that may run in one race."""

    def __init__(
        self,
        running: Sequence[Comparison],
        num_places: int,
        few: int,
        is_final: bool,
        num_affordable: Callable[[], int],
    ) -> None:
        """`num_places`: challengers that fit in memory. `few`: challengers at first. `num_affordable`: further
        challengers that the remaining time allows."""
        self._running = running
        self._num_places = num_places
        self._few = few
        self._most = num_places if is_final else 1
        self._num_affordable = num_affordable
        self.num_rounds = 0

    def num_slots(self) -> int:
        """The number of places that time and memory allow. It never shrinks. It grows if starts turn out to be cheap:
        the very first start reads its files from the disk and takes longest."""
        self._most = max(self._most, min(self._num_places, len(self._running) + self._num_affordable()))
        return self._most

    def num_open(self) -> int:
        """The number of places that are open now. A control that runs alone leaves a place for a candidate: it is only
        useful beside one."""
        number = min(self.num_slots(), self._few * (1 + self.num_rounds // LEADING_ROUNDS))
        is_alone = all(one.is_control for one in self._running)
        return min(self._num_places, max(number, len(self._running) + 1)) if is_alone else number
