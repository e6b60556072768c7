"""Counts the rounds that a decision takes, for different ratios of gain to noise.

The log ratios of one of 12 candidates are simulated. Writes benchmarks/results/rounds.md.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from page import write_page
from slipstream.verify.confidence_sequence import ConfidenceSequence

ALPHA = 0.05 / 12
NOISE = 0.03
MOST_ROUNDS = 200
GAINS = (0.5, 1.0, 2.0, 5.0)  # in units of the noise


def gauss(rng: random.Random) -> float:
    return rng.gauss(0.0, 1.0)


def long_tailed(rng: random.Random) -> float:
    """Student's t with three degrees of freedom, scaled to the same middle half."""
    square = sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3
    return 0.88 * rng.gauss(0.0, 1.0) / square**0.5


def with_outliers(rng: random.Random) -> float:
    return rng.choice((-12.0, 12.0)) if rng.random() < 0.04 else rng.gauss(0.0, 1.0)


NOISES: dict[str, Callable[[random.Random], float]] = {
    "Gaussian": gauss,
    "long-tailed": long_tailed,
    "4% outliers of 12 sigma": with_outliers,
}


def rounds_needed(gain: float, noise: Callable[[random.Random], float], seed: int) -> int:
    rng, comparison = random.Random(seed), ConfidenceSequence()
    for number in range(1, MOST_ROUNDS + 1):
        comparison.add(NOISE * (gain + noise(rng)))
        if comparison.is_faster(0.0, ALPHA):
            return number
    return MOST_ROUNDS + 1


def _shown(number: int) -> str:
    return str(number) if number <= MOST_ROUNDS else f"over {MOST_ROUNDS}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    options = parser.parse_args()
    lines = ["| gain / noise | " + " | ".join(NOISES) + " |", "|---:|" + "---:|" * len(NOISES)]
    for gain in GAINS:
        cells = []
        for noise in NOISES.values():
            needed = sorted(rounds_needed(gain, noise, seed) for seed in range(options.runs))
            cells.append(f"{_shown(needed[len(needed) // 2])}, {_shown(needed[len(needed) * 9 // 10])}")
        lines.append(f"| {gain:g} | " + " | ".join(cells) + " |")
    write_page(
        "rounds",
        "# Rounds that a decision takes\n\nSimulated, not measured: median and 90th percentile of "
        f"{options.runs} comparisons, each for one of 12 candidates (alpha 0.05 / 12).\n\n" + "\n".join(lines) + "\n",
    )


if __name__ == "__main__":
    main()
