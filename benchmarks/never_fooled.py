"""Tests how often tune keeps a useless technique and how often it misses a useful one.

The real search runs thousands of tunings on a simulated backend, with the noise that record_noise.py recorded on this
machine and with stronger noise. Writes benchmarks/results/never_fooled.md.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from page import RESULTS, machine, write_page
from slipstream.testing.noise_model import CALM, NoiseModel, NoiseRecording
from slipstream.testing.simulated_tunings import (
    COLD_START_S,
    NUM_CANDIDATES,
    START_S,
    STEP_S,
    SimulatedOutcome,
    simulate,
)

GAIN, LARGE_GAIN = 1.05, 1.2
MOST_FOOLED, LEAST_FOUND, LEAST_COVERED = 0.05, 0.90, 0.93
DRIFT = NoiseModel(spread=0.0, correlation=0.0, drift=0.01, outlier_share=0.0)
OUTLIERS = NoiseModel(spread=0.0, correlation=0.0, drift=0.0, outlier_share=0.05, outlier_size=1.0)
CORRELATED = NoiseModel(spread=0.02, correlation=0.9, drift=0.0, outlier_share=0.0)
FIRST_SEED = 70_000  # seeds that were not used to develop the search
COLD = f"as recorded, if trials cannot be forked (starts of {COLD_START_S:g} s, otherwise {START_S:g} s)"
FEWER = 4  # times fewer tunings with the large gain, which is hardly ever missed
NOISE_FILE = RESULTS / "noise.json"


@dataclass(frozen=True)
class Place:
    """The conditions of simulated tunings."""

    name: str
    recording: NoiseRecording | None
    noise_model: NoiseModel
    lottery: float = 0.0
    first_seed: int = FIRST_SEED
    start_s: float = START_S

    def tunings(self, number: int, gain: float) -> list[SimulatedOutcome]:
        """Run the tunings on all cores. Their clock is simulated, so they do not disturb each other."""
        seeds = range(self.first_seed, self.first_seed + number)
        with ProcessPoolExecutor() as pool:
            return list(pool.map(partial(self.tuning, gain), seeds, chunksize=4))

    def tuning(self, gain: float, seed: int) -> SimulatedOutcome:
        return simulate(seed, gain, self.recording, self.noise_model, self.lottery, start_s=self.start_s)


def places() -> list[Place]:
    recorded, steady = NoiseRecording.read(NOISE_FILE), NoiseRecording.read(NOISE_FILE, "steady_laps")
    return [
        Place("as recorded", recorded, CALM),
        Place(COLD, recorded, CALM, start_s=COLD_START_S),
        Place("recorded with a steady allocator", steady, CALM),
        Place("steady, with drift (1% a block)", steady, DRIFT),
        Place("steady, with outliers (5% of blocks take twice as long)", steady, OUTLIERS),
        Place("steady, with autocorrelated noise (2%, 0.9 from block to block)", steady, CORRELATED),
        Place("steady, with all of it, milder", steady, NoiseModel(spread=0.01)),
        Place("steady, with processes that differ permanently by 1%", steady, CALM, lottery=0.01),
        Place("as recorded, with processes that differ permanently by 10%", recorded, CALM, lottery=0.1),
        Place("made: 3% noise, correlation, drift, outliers", None, NoiseModel()),
    ]


def share(outcomes: list[bool]) -> float:
    return sum(outcomes) / len(outcomes)


def coverage(tunings: list[SimulatedOutcome]) -> float:
    return share([speed.low <= truth <= speed.high for one in tunings for truth, speed in one.intervals])


def row(place: Place, num_useless: int, num_gain: int) -> str:
    useless, useful = place.tunings(num_useless, 1.0), place.tunings(num_gain, GAIN)
    fooled = share([bool(one.kept) for one in useless])
    found = share([len(one.kept) > 0 for one in useful])
    large = share([len(one.kept) > 0 for one in place.tunings(num_gain // FEWER, LARGE_GAIN)])
    covered = coverage(useless), coverage(useful)
    is_met = fooled <= MOST_FOOLED and found >= LEAST_FOUND and min(covered) >= LEAST_COVERED
    figures = f"{fooled:.1%} | {found:.1%} | {large:.1%} | {covered[0]:.1%} | {covered[1]:.1%}"
    return f"| {place.name} | {figures} | {'met' if is_met else '**missed**'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--useless", type=int, default=600, help="tunings without any gain, for each row")
    parser.add_argument("--useful", type=int, default=200, help="tunings with one true gain, for each row")
    parser.add_argument("--only", help="print only this row, and write no page")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args()
    start = time.monotonic()
    everywhere = [replace(place, first_seed=options.first_seed) for place in places()]
    if options.only:
        place = next(place for place in everywhere if place.name == options.only)
        print(row(place, options.useless, options.useful))
        return
    rows = [row(place, options.useless, options.useful) for place in everywhere]
    recorded_on = json.loads(NOISE_FILE.read_text())["machine"]
    page = (
        f"""# Never fooled

{machine()}
Noise recorded on: {recorded_on}
{NUM_CANDIDATES} candidates, a step of {STEP_S * 1e3:.0f} ms, the default budget, the real search on a simulated backend
({time.monotonic() - start:.0f} s of computing; in every row {options.useless} tunings without a gain, {options.useful}
with a gain of {GAIN - 1:.0%} and {options.useful // FEWER} with the larger gain; seeds from {options.first_seed:,} on).
`benchmarks/never_fooled.py` writes this page.

- *Fooled*: tunings with only useless candidates that kept one. Required: at most {MOST_FOOLED:.0%}.
- *Found*: tunings with one candidate that is {GAIN - 1:.0%} faster that kept one. Required: at least {LEAST_FOUND:.0%}.
- *Found, {LARGE_GAIN - 1:.0%}*: the same with a larger gain.
- *Covered*: 95% intervals that contain the true value, for all candidates that raced. Required: at least
  {LEAST_COVERED:.0%}.

| Noise | Fooled | Found | Found, {LARGE_GAIN - 1:.0%} | Covered, without a gain | Covered, with a gain | |
|---|---:|---:|---:|---:|---:|---|
"""
        + "\n".join(rows)
        + "\n"
    )
    write_page("never_fooled", page)


if __name__ == "__main__":
    main()
