"""Decides whether a candidate's first steps are so slow that it is not raced.

Steps that are slow against the base's recorded step only raise a suspicion: another program may be using the cores. A
suspected candidate and a trial that is already there (the base, if possible) then take turns, step by step. The
candidate is ended if it is slower than the steps just before and just after its own, twice in a row. This module only
decides: the caller runs the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from slipstream.wire.protocol import Ticked

TIMES_SLOWER = 3.0
EXCESS_S = 0.015  # steps of a few milliseconds vary by this much anyway, and are cheap to race
NUM_TURNS = 2  # an intermittent load may slow one step of the candidate alone, but rarely two in a row
# Steps of the other trial in each turn. On an idle machine they take no longer than one step of a suspected candidate.
STEPS_BESIDE = 3


class TooSlow(msgspec.Struct, frozen=True):
    step_s: float  # time that the candidate computed, without waiting for batches
    beside_s: float  # the step of the trial that ran before and after it, the slower of the two


class SlowStart:
    """The first steps of one start of a candidate."""

    def __init__(self) -> None:
        self._before_s = 0.0  # the other trial's step time before the candidate's last step; 0.0 if it was not timed
        self._num_slow = 0

    def judge(self, steady: Sequence[Ticked], base_s: float, time_beside: Callable[[], float]) -> TooSlow | None:
        """To be called after each of the candidate's steps. `time_beside` lets the other trial run STEPS_BESIDE steps
        now and returns the seconds of one of them, or 0.0 if they could not be timed. None: the candidate stays."""
        if not is_suspect(steady, base_s):
            self._before_s, self._num_slow = 0.0, 0
            return None
        step_s = _computing_s(steady[-1])
        before_s, self._before_s = self._before_s, time_beside()
        beside_s = max(before_s, self._before_s)
        is_slow = bool(before_s and self._before_s) and step_s > _limit_s(beside_s)
        self._num_slow = self._num_slow + 1 if is_slow else 0
        return TooSlow(step_s, beside_s) if self._num_slow >= NUM_TURNS else None


def is_suspect(steady: Sequence[Ticked], base_s: float) -> bool:
    """Whether the last two steps took far longer than the base's. One slow step is often the machine's. Time spent
    waiting for a batch does not count: it passes as workers start."""
    return len(steady) > 1 and min(_computing_s(tick) for tick in steady[-2:]) > _limit_s(base_s)


def _computing_s(tick: Ticked) -> float:
    return tick.seconds - tick.input_s


def _limit_s(base_s: float) -> float:
    return max(TIMES_SLOWER * base_s, base_s + EXCESS_S)
