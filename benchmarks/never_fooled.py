"""Tests how often tune keeps a useless recipe and how often it misses a useful technique.

The real search runs thousands of tunings on a simulated backend, with the noise that record_noise.py recorded on this
machine, and with stronger noise. Rows are stored, so an interrupted benchmark continues. Writes
benchmarks/results/never_fooled.md.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from intervals import binomial_interval
from page import RESULTS, machine, store_page
from rows import PACKAGE, Row, Rows, judged, read_json, table
from slipstream.supervise.signals import ended_by_signals
from slipstream.testing.noise_model import CALM, NoiseModel, NoiseRecording
from slipstream.testing.simulated_tunings import (
    COLD_START_S,
    NUM_CANDIDATES,
    START_S,
    STEP_S,
    SimulatedOutcome,
    simulate,
)

TUNINGS = 200
GAINS = {"useless": 1.0, "small": 1.05, "large": 1.2}
DRIFT = NoiseModel(spread=0.0, correlation=0.0, drift=0.01, outlier_share=0.0)
OUTLIERS = NoiseModel(spread=0.0, correlation=0.0, drift=0.0, outlier_share=0.05, outlier_size=1.0)
CORRELATED = NoiseModel(spread=0.02, correlation=0.9, drift=0.0, outlier_share=0.0)
FIRST_SEED = 70_000  # The development of the search did not use seeds from this one on.
COLD = f"as recorded, if trials cannot be forked (starts of {COLD_START_S:g} s, otherwise {START_S:g} s)"
NOISE_FILE = RESULTS / "noise.json"
SIMULATION = [
    *(PACKAGE / "testing" / f"{name}.py" for name in ("simulated_tunings", "simulated_backend", "noise_model")),
    PACKAGE / "testing" / "load_bursts.py",
    NOISE_FILE,
]


@dataclass(frozen=True)
class Limits:
    """The limits that a row must keep. A limit of 0 requires nothing."""

    most_fooled: float = 0.03
    least_small: float = 0.90
    least_large: float = 0.90
    least_covered: float = 0.95


@dataclass(frozen=True)
class Place:
    """The conditions of simulated tunings."""

    name: str
    recording: str = "steady_laps"  # The part of the noise file that is replayed
    noise_model: NoiseModel = CALM
    limits: Limits = Limits()
    lottery: float = 0.0
    start_s: float = START_S
    has_bursts: bool = False
    late_pace: float = 1.0

    def tuning(self, gain: float, seed: int) -> SimulatedOutcome:
        recording = NoiseRecording.read(NOISE_FILE, self.recording) if self.recording else None
        return simulate(
            seed,
            gain,
            recording,
            self.noise_model,
            self.lottery,
            start_s=self.start_s,
            has_bursts=self.has_bursts,
            late_pace=self.late_pace,
        )


# If processes differ from each other by as much as a small gain, a tuning does not have the time to find small gains.
LUCKY = Limits(most_fooled=0.05, least_small=0.0, least_large=0.80)
PLACES = [
    Place("as recorded", "laps"),
    Place(COLD, "laps", start_s=COLD_START_S),
    Place("recorded with a steady allocator"),
    Place("steady, with drift (1% a block)", noise_model=DRIFT),
    Place("steady, with outliers (5% of blocks take twice as long)", noise_model=OUTLIERS),
    Place("steady, with autocorrelated noise (2%, 0.9 from block to block)", noise_model=CORRELATED),
    Place("steady, with all of it, milder", noise_model=NoiseModel(spread=0.01)),
    Place("steady, with processes that differ for life by 1%", lottery=0.01),
    Place("as recorded, with processes that differ for life by 10%", "laps", limits=LUCKY, lottery=0.1),
    Place("as recorded, with bursts of load on one or both cores, 30% of the time", "laps", has_bursts=True),
    Place("as recorded, on a machine that slows down by 30% for good halfway", "laps", late_pace=1.3),
    Place("made: 3% noise, correlation, drift, outliers", "", NoiseModel()),
]


def measure(place: Place, number: int, first_seed: int) -> Row:
    """Runs the tunings on all cores. The clock of a tuning is simulated, so tunings do not disturb each other."""
    row: Row = {"tunings": number}
    covered: list[bool] = []
    for name, gain in GAINS.items():
        with ProcessPoolExecutor() as pool:
            seeds = range(first_seed, first_seed + number)
            outcomes = list(pool.map(partial(place.tuning, gain), seeds, chunksize=4))
        row[name] = sum(bool(one.kept) if gain == 1.0 else one.has_found for one in outcomes)
        row[f"{name}_beside"] = fmean(len(one.kept) - one.has_found for one in outcomes)
        row[f"{name}_s"] = fmean(one.seconds for one in outcomes)
        covered += [speed.low <= truth <= speed.high for one in outcomes for truth, speed in one.intervals]
    return {**row, "covered": sum(covered), "intervals": len(covered)}


def cells(place: Place, row: Row) -> tuple[list[str], bool]:
    """The cells of the page, and whether no threshold is missed."""
    limits, number, words = place.limits, row["tunings"], list[str]()
    fooled, small, large = (binomial_interval(row[name], number) for name in GAINS)
    covered = binomial_interval(row["covered"], row["intervals"])
    for interval in (fooled, small, large, covered):
        words.append(f"{interval.middle:.1%} ({interval.low:.1%} to {interval.high:.1%})")
    least = ((small, limits.least_small), (large, limits.least_large), (covered, limits.least_covered))
    is_met = fooled.middle <= limits.most_fooled and all(interval.middle >= limit for interval, limit in least)
    is_beyond = fooled.low > limits.most_fooled or any(interval.high < limit for interval, limit in least)
    beside = f"{row['small_beside']:.1f}, {row['large_beside']:.1f}"
    seconds = ", ".join(f"{row[f'{name}_s']:.0f}" for name in GAINS)
    words += [beside, seconds, row["commit"], judged(is_met, is_beyond)]
    return [place.name, *words], not is_beyond


def render(rows: dict[str, Row], head: str, number: int, first_seed: int) -> tuple[str, bool]:
    """The page, and whether no threshold is missed."""
    judgements = [cells(place, rows[place.name]) for place in PLACES if place.name in rows]
    usual = Limits()
    titles = ["Noise", "Fooled:", "Found, 5%:", "Found, 20%:", "Covered:", "Useless beside:", "Seconds:", "commit", ""]
    lines = table(titles, [line for line, _ in judgements])
    page = f"""# Never fooled

{head}
Noise recorded on: {read_json(NOISE_FILE)["machine"]}
The real search ran on a simulated backend, with {NUM_CANDIDATES} candidates, a step of {STEP_S * 1e3:.0f} ms and the
default budget. Every row shows {number} tunings in which no technique gains, the same number of tunings in which one
technique gains 5%, and the same number in which one technique gains 20%. Their seeds start at {first_seed:,}.
`benchmarks/never_fooled.py` writes this page.

- *Fooled*: the share of tunings without a gain that kept a technique. Required: at most {usual.most_fooled:.0%}.
- *Found*: the share of tunings that kept the technique that gains. Required: at least {usual.least_small:.0%}.
- *Covered*: the share of bounded 95% intervals that contain the true value. Required: at least
  {usual.least_covered:.0%}.
- *Useless beside*: the mean number of techniques in a recipe that gain nothing, for tunings with a gain of 5% and of
  20%. No number is required.
- *Seconds*: the simulated seconds of a tuning without a gain, with a gain of 5% and with a gain of 20%. No number is
  required.
- If the speeds of processes differ for life by 10%, other numbers are required: at most {LUCKY.most_fooled:.0%} are
  fooled, and a gain of 20% is found in at least {LUCKY.least_large:.0%}.
- A threshold is missed only if the whole 95% interval (Clopper and Pearson) is beyond it.

{lines}
"""
    return page, all(is_right for _, is_right in judgements)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunings", type=int, default=TUNINGS, help="tunings of each kind, for each row")
    parser.add_argument("--only", help="print only this row, and write no page")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args()
    if options.only:
        place = next(place for place in PLACES if place.name == options.only)
        print(measure(place, options.tunings, options.first_seed))
        return
    head, rows, is_right = machine(), Rows("never_fooled"), True
    with ended_by_signals():
        for place in PLACES:
            run = partial(measure, place, options.tunings, options.first_seed)
            rows.measure(place.name, run, *SIMULATION, settings=(options.tunings, options.first_seed, place))
            page, is_right = render(
                rows.stored(place.name for place in PLACES), head, options.tunings, options.first_seed
            )
            store_page("never_fooled", page)
    if not is_right:
        sys.exit("A threshold of never_fooled.md is missed.")


if __name__ == "__main__":
    main()
