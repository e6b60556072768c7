"""Whole tunings on a simulated backend: twelve synthetic techniques, of which at most one gains anything, through the
real search.

They prove that `tune` does not report false gains. They say nothing about any real technique.
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
START_S = 2.0  # start of a forked trial alone; 1.2 s each if two start at the same time (benchmarks/starts.py)
COLD_START_S = 4.0  # of a trial that is not forked
HALFWAY_S = 180.0  # in the middle of these tunings, which take about six minutes
BESIDE = 0.75  # share of a start that completes while another one starts; measured by benchmarks/starts.py on two cores


class SimulatedOutcome(msgspec.Struct, frozen=True):
    """The outcome of one tuning."""

    kept: tuple[str, ...]
    has_found: bool  # whether the technique that gains is among the kept
    intervals: tuple[tuple[float, Speed], ...]  # the true ratio and the reported speed, for every bounded interval
    seconds: float


def simulate(
    seed: int,
    gain: float = 1.0,  # the gain of one technique, drawn by the seed; the others gain nothing
    recording: NoiseRecording | None = None,
    noise_model: NoiseModel | None = None,
    lottery: float = 0.0,
    num_trials: int = 6,
    start_s: float = START_S,
    has_bursts: bool = False,  # other programs use the cores now and then
    late_pace: float = 1.0,  # factor on all times from HALFWAY_S on
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
        """The true ratio. The recipe may hold useless techniques beside the one that gains."""
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
    """The session of the check, with steps as long as those of the backend."""
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
