"""How many may ride at once in one heat: few at first, more as rounds go by and as starts turn out to be cheaper.
Starts nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.tuning.comparison import LEADING_ROUNDS, Comparison


class ConcurrencyLimit:
    def __init__(
        self, riding: Sequence[Comparison], num_places: int, few: int, is_final: bool, num_affordable: Callable[[], int]
    ) -> None:
        """`num_places`: that memory holds; `few`: at first; `num_affordable`: more that time allows now."""
        self._riding = riding
        self._num_places = num_places
        self._few = few
        self._most = num_places if is_final else 1
        self._num_affordable = num_affordable
        self.num_rounds = 0

    def num_slots(self) -> int:
        """Never fewer than before; more as starts turn out to be cheaper: the first of all reads its files from the
        disk."""
        self._most = max(self._most, min(self._num_places, len(self._riding) + self._num_affordable()))
        return self._most

    def num_open(self) -> int:
        """The control alone has nothing to be compared with, and takes nobody's place."""
        number = min(self.num_slots(), self._few * (1 + self.num_rounds // LEADING_ROUNDS))
        is_alone = all(one.is_control for one in self._riding)
        return min(self._num_places, max(number, len(self._riding) + 1)) if is_alone else number
