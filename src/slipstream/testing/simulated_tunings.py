"""Whole tunings on a simulated track: twelve made techniques, of which at most one is worth anything, through the real
search. For the proof that tune is never fooled; says nothing about any real technique."""

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
from slipstream.testing.made_sessions import made_session
from slipstream.testing.noise_model import Noise, NoiseModel, NoiseRecording
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import SilentListener
from slipstream.tuning.search import tune

NUM_CANDIDATES = 12
STEP_S = 0.05
START_S = 2.0  # of a forked rider by itself; 1.2 s each where two start at a time (benchmarks/starts.py)
COLD_START_S = 4.0  # where riders cannot be forked
BESIDE = 0.75  # of a start, while another one starts: as benchmarks/starts.py found it on two cores


class SimulatedOutcome(msgspec.Struct, frozen=True):
    """Of one tuning."""

    kept: tuple[str, ...]
    told: tuple[str, ...]  # techniques whose last word is that they were kept
    intervals: tuple[tuple[float, Speed], ...]  # the truth and what was said of it, for every candidate that raced
    seconds: float  # of the budget


def simulate(
    seed: int,
    gain: float = 1.0,  # of one technique, drawn by the seed; the others are worth nothing
    recording: NoiseRecording | None = None,
    noise_model: NoiseModel | None = None,
    lottery: float = 0.0,
    num_trials: int = 6,
    start_s: float = START_S,
) -> SimulatedOutcome:
    draws = random.Random(seed)
    names = [f"made_{number:02}" for number in range(NUM_CANDIDATES)]
    lucky = draws.choice(names)
    backend = SimulatedBackend(
        choice_factors(**{lucky: 1.0 / gain}),
        step_s=STEP_S,
        noise=Noise(random.Random(draws.random()), recording, noise_model),
        seed=seed,
        startup_s=lambda recipe: start_s,
        beside=BESIDE,
        lottery=lottery,
        num_trials=num_trials,
    )
    known: Any = {name: made_technique() for name in ("nothing", *names)}
    tuning = tune(_session(), backend, TuneOptions(seed=seed), SilentListener(), known)

    def truth(recipe: Recipe) -> float:
        """A technique may be raced on top of the one that gains."""
        return gain if any(choice.technique == lucky for choice in recipe.choices) else 1.0

    told = [(truth(one.recipe), one.speed) for one in tuning.verdicts if one.kind in ("single", "total") and one.speed]
    last = {one.technique: one.decision for one in tuning.verdicts if one.kind in ("single", "cumulative")}
    said = tuple(name for name, decision in last.items() if decision == "kept")
    return SimulatedOutcome(
        tuple(choice.technique for choice in tuning.recipe.choices), said, tuple(told), backend.now_s()
    )


@lru_cache(maxsize=1)
def _session() -> Session:
    """What the check saw: steps as long as those on the track."""
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
