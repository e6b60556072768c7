"""Successive halving (Jamieson and Talwalkar, 2016; Karnin, Koren and Somekh, 2013) over arms: techniques with a
setting, on top of the recipe so far.

All arms race for a few rounds. The better ones go on to the next rung, where they race for ETA times as many rounds,
in new processes, because a process can be fast or slow for its whole life. There is no significance test: the proof
of the whole recipe decides whether anything is kept, with processes of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from slipstream.records import Failure, Recipe
from slipstream.tuning.candidates import Arm
from slipstream.tuning.trials import Inert, RecipeTrials

ETA = 2  # each rung keeps 1/ETA of the arms, and has ETA times the rounds of the rung before
# Rounds of the first rung, as the time allows: a single one may be an outlier. After six rounds of recorded noise one
# of six arms that gain 5% is dropped, after twelve one of 14.
LEAST_ROUNDS, MOST_ROUNDS = 2, 12
FEW = 6  # arms on the last rung: several techniques may gain, and are then combined


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
        """The log ratio against the anchor; None if no block of it could be timed. Processes are weighted by the root
        of their rounds. Equal weights would be right if only processes varied, and rounds if only blocks did."""
        if not self.gains:
            return None
        weights = [math.sqrt(num_rounds) for _, num_rounds in self.gains]
        return sum(gain * weight for (gain, _), weight in zip(self.gains, weights, strict=True)) / sum(weights)


def rung_sizes(num_arms: int, first_rounds: int) -> list[tuple[int, int]]:
    """The number of arms and of rounds of each rung. There are two rungs at least, so that a winner has been
    timed in two processes at least."""
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
    """Runs all rungs. `race` gets the entries and the number of rounds, races them, and adds to their `gains` or sets
    their `failure`. `late` entries take long to start, and join on the last rung. Returns the entries of the last rung,
    best first."""
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
