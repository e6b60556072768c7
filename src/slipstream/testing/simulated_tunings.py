"""Whole tunings on a simulated backend. The real search tunes twelve synthetic techniques. At most one of them gains.

These tunings check that `tune` does not report false gains. They do not measure any real technique.
"""

from __future__ import annotations

import random
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import msgspec

from slipstream.diagnose import diagnose
from slipstream.records import Edit, Recipe, Session, Setting, Speed
from slipstream.techniques._core.card import YES, Answer, Card
from slipstream.techniques._core.observation import Observation
from slipstream.testing.load_bursts import LoadBursts
from slipstream.testing.made_sessions import made_session
from slipstream.testing.noise_model import Noise, NoiseModel, NoiseRecording
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import SilentListener
from slipstream.tuning.search import tune

NUM_CANDIDATES = 12
STEP_S = 0.05
START_S = 2.0  # Start of a forked trial alone. If two start together, it is 1.2 s for each (benchmarks/starts.py).
COLD_START_S = 4.0  # Start of a trial that is not forked
HALFWAY_S = 180.0  # The middle of these tunings, which take about six minutes
BESIDE = 0.75  # Share of a start that completes while another trial starts (benchmarks/starts.py, on two cores)


class SimulatedOutcome(msgspec.Struct, frozen=True):
    """The outcome of one tuning."""

    kept: tuple[str, ...]
    has_found: bool  # Whether the technique that gains is kept
    intervals: tuple[tuple[float, Speed], ...]  # The true ratio and the reported speed, for every bounded interval
    seconds: float


def simulate(
    seed: int,
    gain: float = 1.0,  # The gain of one technique, which the seed selects. All other techniques gain nothing.
    recording: NoiseRecording | None = None,
    noise_model: NoiseModel | None = None,
    lottery: float = 0.0,
    num_trials: int = 6,
    start_s: float = START_S,
    has_bursts: bool = False,  # Whether other programs use the cores in bursts
    late_pace: float = 1.0,  # Factor on all times from HALFWAY_S on
) -> SimulatedOutcome:
    draws = random.Random(seed)
    names = [f"made_{number:02}" for number in range(NUM_CANDIDATES)]
    lucky = draws.choice(names)
    bursts = LoadBursts(seed)
    backend = SimulatedBackend(
        choice_factors(**{lucky: 1.0 / gain}),
        step_s=STEP_S,
        noise=Noise(random.Random(draws.random()), recording, noise_model),
        seed=seed,
        startup_s=lambda recipe: start_s,
        cold_start_s=lambda recipe: COLD_START_S,
        load=bursts.num_cores if has_bursts else lambda now_s: 0.0,
        pace=lambda now_s: late_pace if now_s >= HALFWAY_S else 1.0,
        beside=BESIDE,
        lottery=lottery,
        num_trials=num_trials,
    )
    known: Any = {name: made_technique() for name in ("nothing", *names)}
    tuning = tune(_session(), backend, TuneOptions(seed=seed), SilentListener(), known)

    def truth(recipe: Recipe) -> float:
        """Returns the true ratio of a recipe. The recipe may also contain techniques that gain nothing."""
        return gain if any(choice.technique == lucky for choice in recipe.choices) else 1.0

    told = [
        (truth(one.recipe), one.speed)
        for one in tuning.verdicts
        if one.kind in ("single", "total") and one.speed is not None and one.speed.is_bounded
    ]
    kept = tuple(choice.technique for choice in tuning.recipe.choices)
    return SimulatedOutcome(kept, gain > 1.0 and lucky in kept, tuple(told), backend.now_s())


@lru_cache(maxsize=1)
def _session() -> Session:
    """Returns the session of the check. Its steps are as long as the steps of the backend."""
    compute_ms = STEP_S * 1e3 - 2.0
    return diagnose(made_session(forward_ms=compute_ms / 3, backward_ms=compute_ms * 2 / 3))


def made_technique() -> SimpleNamespace:
    def applies(observation: Observation) -> Answer:
        return YES

    def settings(observation: Observation) -> list[Setting]:
        return [True]

    def edit(observation: Observation, setting: Setting) -> list[Edit]:
        return []

    card = Card(title="A made technique", seam="process", causes=(), numerics="identical")
    return SimpleNamespace(CARD=card, applies=applies, settings=settings, edit=edit)
