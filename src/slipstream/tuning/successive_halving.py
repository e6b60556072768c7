"""Successive halving (Jamieson and Talwalkar, 2016; Karnin, Koren and Somekh, 2013) over arms: techniques with a
setting, on top of the recipe so far.

All arms race for a few rounds against the anchor, which is the trial that the others of a race are compared with. The
better arms continue on the next rung, which has ETA times as many rounds. Each rung starts new processes, because a
process can be fast or slow for its whole life. There is no significance test. The proof of the whole recipe decides
whether anything is kept, and the proof starts its own processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from slipstream.records import Failure, Recipe
from slipstream.tuning.candidates import Arm
from slipstream.tuning.trials import Inert, RecipeTrials

ETA = 2  # the next rung has 1/ETA of the arms, but at least FEW if there are so many, and ETA times the rounds
# The fewest and the most rounds of the first rung. The number depends on the time that is left. A single round may be
# an outlier. With recorded noise, one of six arms that gain 5% is dropped after six rounds, and one of 14 after twelve.
LEAST_ROUNDS, MOST_ROUNDS = 2, 12
FEW = 6  # arms on the last rung; several techniques may gain, and a pass combines them


class Entry(msgspec.Struct, eq=False):
    """An arm in a pass, with its trials."""

    arm: Arm
    trials: RecipeTrials
    gains: list[tuple[float, int]] = []  # log ratio against the anchor and number of rounds, for each process
    is_on_last_rung: bool = False
    failure: Failure | None = None
    inert: Inert | None = None

    @property
    def recipe(self) -> Recipe:
        return self.trials.recipe

    @property
    def gain(self) -> float | None:
        """The log ratio against the anchor, or None if no block of the arm was timed. It is a weighted mean over the
        arm's processes. The weight of a process is the square root of its number of rounds. Equal weights would be
        right if only processes varied. The number of rounds would be right if only blocks varied."""
        if not self.gains:
            return None
        weights = [math.sqrt(num_rounds) for _, num_rounds in self.gains]
        return sum(gain * weight for (gain, _), weight in zip(self.gains, weights, strict=True)) / sum(weights)


def rung_sizes(num_arms: int, first_rounds: int) -> list[tuple[int, int]]:
    """Returns the number of arms and the number of rounds for each rung. There are at least two rungs. An arm that
    starts on the first rung and wins has therefore been timed in at least two processes."""
    if num_arms < 1:
        return []
    sizes = [num_arms]
    while sizes[-1] > FEW or len(sizes) < 2:
        sizes.append(min(sizes[-1], max(FEW, math.ceil(sizes[-1] / ETA))))
    return [(size, first_rounds * ETA**rung) for rung, size in enumerate(sizes)]


def halve(
    entries: Sequence[Entry],
    late: Sequence[Entry],
    first_rounds: int,
    race: Callable[[Sequence[Entry], int], None],
) -> list[Entry]:
    """Runs all rungs and returns the timed entries of the last rung, best first. `race` races the given entries for the
    given number of rounds. It adds to the entries' `gains`, or sets their `failure` or `inert`. The entries in `late`
    take long to start, so they race only on the last rung."""
    going, rungs = list(entries), rung_sizes(len(entries), first_rounds) or [(0, first_rounds * ETA)]
    for number, (_, num_rounds) in enumerate(rungs):
        is_last = number == len(rungs) - 1
        if is_last:
            going += late
        for entry in going:
            entry.is_on_last_rung = is_last
        race(going, num_rounds)
        going = ranked(going)
        if not is_last:
            going = going[: rungs[number + 1][0]]
        if not going and not (late and not is_last):
            break
    return going


def ranked(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that were timed, best first."""
    timed = [entry for entry in entries if not (entry.failure or entry.inert) and entry.gain is not None]
    return sorted(timed, key=lambda entry: -(entry.gain or 0.0))
