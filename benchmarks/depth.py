"""Measures how close tune comes to the best recipe if several techniques gain, some only together with others.

The real search runs whole tunings on a simulated backend. The simulated step is half data and half compute. The result
says nothing about any real technique. Writes benchmarks/results/depth.md.
"""

from __future__ import annotations

import argparse
import itertools
import random
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean, stdev
from typing import Any

from page import machine, write_page
from slipstream.diagnose import diagnose
from slipstream.records import Choice, Recipe
from slipstream.testing.made_sessions import made_session
from slipstream.testing.noise_model import Noise, NoiseModel
from slipstream.testing.simulated_backend import SimulatedBackend
from slipstream.testing.simulated_tunings import BESIDE, made_technique
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import SilentListener
from slipstream.tuning.search import tune

STEP_S, BUDGET_S, STARTUP_S, COMPILING_S = 0.15, 200.0, 6.0, 20.0
NOISE_MODEL = NoiseModel(spread=0.1, correlation=0.3, drift=0.003, outlier_share=0.03, outlier_size=0.8)
GAINING = ("layout", "workers", "cache", "decode", "optimizer", "compiler")
NAMES = (*GAINING, "lower", "one_thread", "useless_a", "useless_b", "useless_c", "useless_d")


def factor(recipe: Recipe) -> float:
    """The step time relative to the base. Data and compute take turns, or overlap in part if there are workers."""
    on = {choice.technique for choice in recipe.choices}
    data = 0.5 / (2.2 if "cache" in on else 1.1 if "decode" in on else 1.0)
    compute = 0.5 / (1.9 if "layout" in on else 1.0)
    for name, times in (("lower", 6.0), ("one_thread", 1.1), ("optimizer", 0.98), ("compiler", 0.95)):
        compute *= times if name in on else 1.0
    both = data + compute
    return 0.6 * max(data, compute) + 0.35 * both if "workers" in on else both


def startup_s(recipe: Recipe) -> float:
    return STARTUP_S + (COMPILING_S if recipe.setting_of("compiler") is not None else 0.0)


def share_of_best(seed: int) -> float:
    draws = random.Random(seed)
    noise = Noise(random.Random(draws.random()), None, NOISE_MODEL)
    backend = SimulatedBackend(
        factor, step_s=STEP_S, noise=noise, seed=seed, startup_s=startup_s, beside=BESIDE, num_trials=6
    )
    order = draws.sample(NAMES, len(NAMES))
    known: Any = {name: made_technique() for name in ("nothing", *order)}
    compute_ms = STEP_S * 1e3 - 2.0
    session = diagnose(made_session(forward_ms=compute_ms / 3, backward_ms=compute_ms * 2 / 3))
    tuning = tune(session, backend, TuneOptions(seed=seed, budget_s=BUDGET_S), SilentListener(), known)
    return best_factor() / factor(tuning.recipe)


def best_factor() -> float:
    parts = itertools.chain.from_iterable(itertools.combinations(GAINING, number) for number in range(len(GAINING) + 1))
    return min(factor(Recipe(tuple(Choice(name) for name in part))) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunings", type=int, default=500)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        seeds = range(options.first_seed, options.first_seed + options.tunings)
        shares = sorted(pool.map(share_of_best, seeds, chunksize=8))
    sure = 1.96 * stdev(shares) / len(shares) ** 0.5
    tenth, quarter, half = (shares[int(len(shares) * at)] for at in (0.1, 0.25, 0.5))
    page = f"""# How deep tune gets

{machine()}
{options.tunings} tunings (seeds from {options.first_seed}) of a simulated step of {STEP_S * 1e3:.0f} ms, half data and
half compute, in {BUDGET_S:.0f} s, with {len(NAMES)} techniques in random order. {len(GAINING)} of them gain something,
alone or together with others. Blocks differ by {NOISE_MODEL.spread:.0%}, starts take {STARTUP_S:.0f} s.
`benchmarks/depth.py` writes this page.

| of the best recipe's speed | |
|---|---:|
| on average (95%) | {fmean(shares):.3f} ({fmean(shares) - sure:.3f} to {fmean(shares) + sure:.3f}) |
| with an empty recipe | {best_factor():.3f} |
| in the worst tenth, at most | {tenth:.3f} |
| in the worst quarter, at most | {quarter:.3f} |
| in the worse half, at most | {half:.3f} |
"""
    write_page("depth", page)


if __name__ == "__main__":
    main()
