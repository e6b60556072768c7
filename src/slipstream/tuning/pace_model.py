"""Compares all trials with a model of all rounds. The pace of a round is estimated from all trials in it, not only from
the anchor's block. The model is more precise than paired ratios, but no proof. It decides which candidates continue,
which are paused, and which are kept provisionally."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from slipstream.records import BlockTiming

NUM_SHARED = 10  # weight, in rounds, of the variance of all trials in that of one trial
SWEEPS = 2  # for each fit: it starts from the last result, which is close


class PaceModel:
    """Models the log step time as the round's pace plus the trial's pace. Both are estimated alternately with trimmed
    means, so that outliers have little weight."""

    def __init__(self) -> None:
        self._rounds: list[dict[int, float]] = []  # log seconds per step, by trial
        self._rounds_of: dict[int, list[int]] = {}  # indices of rounds, by trial
        self._round_paces: list[float] = []
        self._paces: dict[int, float] = {}  # by trial
        self._squares: dict[int, float] = {}  # sums of squared residuals, by trial
        self._shared = 0.0  # the variance of a block over all trials
        self._is_stale = False

    def add(self, timings: Mapping[int, BlockTiming]) -> None:
        """Adds one round, with timings by trial. Disturbed blocks are ignored, as is a round with only one valid
        block."""
        logs = {trial: math.log(timing.step_s) for trial, timing in timings.items() if is_timed(timing)}
        if len(logs) < 2:
            return
        known = [log - self._paces[trial] for trial, log in logs.items() if trial in self._paces]
        pace = middle(known or list(logs.values()))
        for trial, log in logs.items():
            self._rounds_of.setdefault(trial, []).append(len(self._rounds))
            self._paces.setdefault(trial, log - pace)
        self._rounds.append(logs)
        self._round_paces.append(pace)
        self._is_stale = True

    def num_rounds(self, trial: int) -> int:
        return len(self._rounds_of.get(trial, ()))

    def gain(self, trial: int, anchor: int) -> float:
        """The log of the speed ratio."""
        self._fit()
        return self._paces[anchor] - self._paces[trial]

    def uncertainty(self, trial: int, anchor: int) -> float:
        """The standard error of `gain`."""
        self._fit()
        return math.sqrt(sum(self._variance(one) / len(self._rounds_of[one]) for one in (trial, anchor)))

    def _fit(self) -> None:
        if not self._is_stale:
            return
        for _ in range(SWEEPS):
            paces = self._paces
            self._round_paces = [middle([log - paces[trial] for trial, log in logs.items()]) for logs in self._rounds]
            self._paces = {
                trial: middle([self._rounds[at][trial] - self._round_paces[at] for at in indices])
                for trial, indices in self._rounds_of.items()
            }
        self._squares = {trial: self._sum_of_squares(trial) for trial in self._rounds_of}
        num_free = sum(len(indices) - 1 for indices in self._rounds_of.values())
        self._shared = sum(self._squares.values()) / max(1, num_free)
        self._is_stale = False

    def _sum_of_squares(self, trial: int) -> float:
        """The squared residuals of a trial, corrected for its own contribution to the rounds' paces."""
        own, total = self._paces[trial], 0.0
        for at in self._rounds_of[trial]:
            logs = self._rounds[at]
            total += (logs[trial] - self._round_paces[at] - own) ** 2 * len(logs) / (len(logs) - 1)
        return total

    def _variance(self, trial: int) -> float:
        """The variance of one block. A trial with few rounds gets mostly the variance of all trials."""
        num_free = len(self._rounds_of[trial]) - 1
        return max(1e-12, (self._squares[trial] + NUM_SHARED * self._shared) / (num_free + NUM_SHARED))


def is_timed(timing: BlockTiming) -> bool:
    return not timing.failure and not timing.is_disturbed and timing.step_s > 0.0


def middle(values: Sequence[float]) -> float:
    """The mean of the middle half of the values."""
    ordered, cut = sorted(values), len(values) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])
