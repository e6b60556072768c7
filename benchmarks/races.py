"""Races between chosen recipes, for benchmarks. They measure how much faster one recipe of a script is than another.

A pair is two new processes, one of each recipe. The two processes take turns, and the pair gives one ratio. A process
can be faster or slower than another one from its start to its end. The interval is therefore computed from the ratios
of several pairs, by Student's t. The statistics of tune are not used, because these races judge the results of tune.

Ratios are stored in results/races.json. Several tunings may keep equal recipes. Such a recipe is raced once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from intervals import NUM_VALUES, Interval, mean_interval
from page import processor
from recipes import variables
from rows import PACKAGE, Rows
from slipstream.records import Recipe, Tick, TrialSpec
from slipstream.supervise.race import ProcessBackend

BLOCK_S = 0.4
ROUNDS_OF_PAIR = 16  # The error of the median of these rounds is smaller than the difference between processes.
# If a recipe has less than this share of the speed after this number of rounds, the race ends.
HOPELESS_ROUNDS, HOPELESS = 3, 0.5
PAIRS = NUM_VALUES
TECHNIQUES = (PACKAGE / "techniques", PACKAGE / "data")  # The code that decides what a recipe does


class RaceFailedError(Exception):
    """A trial could not start, or ended early, or no round was undisturbed."""


def race(script: Sequence[str], recipes: Sequence[Recipe], num_rounds: int, tick: Tick = "optimizer") -> list[float]:
    """Returns the ratio of the first recipe's step time to that of the second, for each undisturbed round.

    The race starts two new processes.
    """
    with ProcessBackend(list(script), tick=tick, environment_of=variables) as process_backend:
        for ident, recipe in enumerate(recipes):
            failure = process_backend.enter(TrialSpec(ident, "candidate" if recipe.choices else "base", recipe))
            if failure:
                raise RaceFailedError(str(failure))
        first = process_backend.run_block(0, 0, 2, 1)
        num_steps = max(2, math.ceil(BLOCK_S / max(first.step_s, 1e-4)))
        rng, ratios = random.Random(0), list[float]()
        for number in range(1, num_rounds + 1):
            timings = {ident: process_backend.run_block(ident, number, num_steps, 1) for ident in rng.sample((0, 1), 2)}
            for failed in (timing.failure for timing in timings.values() if timing.failure):
                raise RaceFailedError(str(failed))
            if not any(timing.is_disturbed or not timing.step_s for timing in timings.values()):
                ratios.append(timings[0].step_s / timings[1].step_s)
            if number == HOPELESS_ROUNDS and ratios and median(ratios) < HOPELESS:
                break
        if not ratios:
            raise RaceFailedError("no round was undisturbed")
        return ratios


class Races:
    """Runs races and stores their results."""

    def __init__(self) -> None:
        self._rows = Rows("races", TECHNIQUES)

    def ratio(
        self, name: str, script: Sequence[str], files: Sequence[Path], first: Recipe, second: Recipe, tick: Tick
    ) -> Interval:
        """The speed of the second recipe, divided by that of the first. The script depends on `files`."""
        if set(first.choices) == set(second.choices):
            return Interval(1.0, 1.0, 1.0)

        def measure() -> dict[str, float]:
            logs = [math.log(median(race(script, [first, second], ROUNDS_OF_PAIR, tick))) for _ in range(PAIRS)]
            interval = mean_interval(logs)
            return asdict(Interval(*(math.exp(bound) for bound in (interval.middle, interval.low, interval.high))))

        row = self._rows.measure(f"{name}: {first} | {second}", measure, *files, settings=processor())
        return Interval(row["middle"], row["low"], row["high"])
