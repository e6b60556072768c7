"""Chooses the next batch size to try. The size lies between the largest size that ran and the smallest size that ran
out of memory. When these two are one percent apart, the search ends with a size a little below the largest that ran.
Sizes are guessed from the memory that earlier sizes used, or bisected if guesses fail. The memory of two runs of one
size differs, so the largest difference that was seen is kept free below the limit. This module only computes. The
caller runs the sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from slipstream.memory.forecast import Forecast

NARROW: Final = 0.01  # the share of the batch to which the limit is searched
SUITED: Final = 0.02  # the share of the batch that may be given up for free memory and a size that suits the hardware
_SPREAD: Final = 0.0025  # the least difference between two starts of one script, as a share of the limit
_GUESSES: Final = 4  # guesses by linear extrapolation before the interval is bisected
_BACK: Final = 0.95  # the next size after a guess that ran out of memory, as a share of the guess
_MOST: Final = 1 << 20
_SUITS_UP_TO: Final = 64  # multiples of higher powers of two are no better

Held = Callable[[int], float]  # batch size to bytes


class BatchBisection:
    """Call `next_size`, run this size, report `ran` or `ran_out`, and repeat until `next_size` returns None. Sizes are
    at least one and at most `most`."""

    def __init__(
        self, limit_bytes: int, own_batch: int, most: int | None = None, predicted: Held | None = None
    ) -> None:
        self._limit_bytes = limit_bytes
        self._own = own_batch
        self._most = max(1, most if most is not None else _MOST)
        self._predicted = predicted
        self._held: dict[int, int] = {}  # maps sizes that ran to their memory; 0: not known
        self._failed: set[int] = set()
        self._num_guesses = 0
        self.spread_bytes = int(_SPREAD * limit_bytes)  # the largest difference in memory between two runs of one size

    @property
    def largest(self) -> int:
        """Returns the largest size that always ran, or 0."""
        return max((size for size in self._held if size < self.too_large), default=0)

    @property
    def too_large(self) -> int:
        return min(self._failed, default=self._most + 1)

    @property
    def is_bounded(self) -> bool:
        """Whether a size has run out of memory. As long as none has, the amount of data sets the limit."""
        return bool(self._failed)

    def ran(self, size: int, held_bytes: int = 0) -> None:
        before = self._held.get(size, 0)
        if before and held_bytes:
            self.spread_bytes = max(self.spread_bytes, abs(held_bytes - before))
        self._held[size] = max(held_bytes, before)

    def ran_out(self, size: int) -> None:
        self._failed.add(size)

    def next_size(self) -> int | None:
        """Returns the next size. Returns None if the limit is known and the size that `answer` returns has run, or if
        not even a batch of one runs."""
        low, high = self.largest, self.too_large
        if high <= 1:
            return None
        if high - low <= (step_at(low) if self.is_bounded else 1):
            return self._wanted() if self._wanted() not in self._held else None
        return min(max(self._propose(low, high), low + 1), high - 1)

    def answer(self) -> int:
        """Returns a size a little below the largest that ran, so that the size will run again. If this costs little,
        the size is divisible by a power of two, which suits the hardware. If memory does not set the limit, returns the
        largest size that ran."""
        wanted = self._wanted()
        return wanted if wanted in self._held else self.largest

    def _wanted(self) -> int:
        low = self.largest
        if not self.is_bounded or low < 2:
            return low
        each = self._bytes_each()
        safe = max(1, low - (math.ceil(self.spread_bytes / each) if each else 0))
        return suit(safe, math.ceil((1.0 - SUITED) * low))

    def _bytes_each(self) -> float:
        """Returns the bytes per additional sample, or 0.0 if they are not known."""
        known = sorted(size for size, held in self._held.items() if held)
        if len(known) > 1:
            return max(0.0, (self._held[known[-1]] - self._held[known[0]]) / (known[-1] - known[0]))
        if self._predicted is not None and self.largest:
            return self._predicted(self.largest + 1) - self._predicted(self.largest)
        return 0.0

    def _propose(self, low: int, high: int) -> int:
        guess = self._guess() if self._num_guesses < _GUESSES else None
        self._num_guesses += 1
        if guess is None:
            if not self._failed:
                return 2 * low if low else self._own
            return (low + high) // 2
        if guess <= low:  # according to the guess `low` is the limit, so the next size should fail
            return low + step_at(low)
        if guess >= high and not self.is_bounded:
            return high - 1
        return guess if guess < high else max((low + high) // 2, int(_BACK * high))

    def _guess(self) -> int | None:
        """Returns the size at which the linear extrapolation reaches the limit, from measured or predicted memory."""
        known = sorted(size for size, held in self._held.items() if held)
        if len(known) > 1:
            small, large = known[-2:]
            each = (self._held[large] - self._held[small]) / (large - small)
            return large + int((self._limit_bytes - self._held[large]) / each) if each > 0 else None
        if self._predicted is None:
            return None
        aside = self._held[known[0]] - self._predicted(known[0]) if known else 0.0
        return _last_below(lambda size: self._predicted_at(size) + aside <= self._limit_bytes, self._most)

    def _predicted_at(self, size: int) -> float:
        assert self._predicted is not None
        return self._predicted(size)


def held_by(forecast: Forecast, own_batch: int, own_bytes: int) -> Held:
    """Returns a function that predicts a process's memory at another batch size. The prediction is the memory at the
    script's own size plus the difference in tensors."""
    own = forecast.peak_bytes(own_batch)
    return lambda size: own_bytes + forecast.peak_bytes(size) - own


def step_at(size: int) -> int:
    return max(1, int(NARROW * size))


def suit(size: int, least: int) -> int:
    """Returns the size from `least` to `size` that is divisible by the highest power of two, up to 64. Of several such
    sizes it is the largest."""
    power = _SUITS_UP_TO
    while power > 1:
        rounded = size - size % power
        if rounded >= max(1, least):
            return rounded
        power //= 2
    return size


def num_twos(size: int) -> int:
    """Returns the highest power of two, up to 64, that divides the size."""
    return min(_SUITS_UP_TO, size & -size) if size > 0 else 1


def _last_below(holds: Callable[[int], bool], most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
