from __future__ import annotations

import random
from itertools import pairwise
from statistics import fmean

import pytest

from slipstream.records import Choice, Entrant, Recipe
from slipstream.testing.noise_model import CALM, Noise, Recording, Weather
from slipstream.testing.simulated_backend import SimulatedTrack, choice_factors
from slipstream.wire.backend import SLOWER

FAST = Recipe((Choice("fast"),))


def test_time_passes_while_riders_start_and_ride() -> None:
    track = SimulatedTrack(step_s=0.1, startup_s=lambda recipe: 3.0)
    assert track.enter(Entrant(0, "base")) == ""
    assert track.now_s() == pytest.approx(3.0)
    lap = track.lap(0, 1, num_steps=8, lead_in=2)
    assert track.now_s() == pytest.approx(4.0)
    assert lap.step_s == pytest.approx(0.1)
    assert (lap.first_step, lap.num_steps, lap.num_samples) == (2, 8, 8 * 32)


def test_a_rider_that_is_expected_starts_beside_another() -> None:
    track = SimulatedTrack(startup_s=lambda recipe: 4.0, beside=0.75)
    track.enter(Entrant(0, "base"))
    track.expect(Entrant(2, "candidate", FAST))
    track.enter(Entrant(1, "candidate", FAST))
    assert track.now_s() == pytest.approx(8.0)
    track.enter(Entrant(2, "candidate", FAST))
    assert track.now_s() == pytest.approx(9.0), "three quarters were done"
    track.expect(Entrant(4, "candidate", FAST))
    track.enter(Entrant(3, "candidate", FAST))
    track.lap(0, 1, 4, 1)
    before_s = track.now_s()
    track.enter(Entrant(4, "candidate", FAST))
    assert track.now_s() - before_s == pytest.approx(4.0), "nobody starts beside a block"


def test_recipes_have_the_step_times_that_were_chosen() -> None:
    track = SimulatedTrack(choice_factors(fast=0.5))
    for ident, recipe in enumerate((Recipe(), FAST)):
        track.enter(Entrant(ident, "candidate" if ident else "base", recipe))
    assert track.lap(1, 1, 4, 1).step_s == pytest.approx(0.5 * track.lap(0, 1, 4, 1).step_s)
    assert track.record(1).changes == ["fast: fast"]


def test_a_hopeless_rider_leaves_in_its_warm_up() -> None:
    track = SimulatedTrack(choice_factors(fast=20.0))
    assert track.enter(Entrant(1, "candidate", FAST)).startswith(SLOWER)


def test_a_script_ends_and_a_rider_fails_when_told_to() -> None:
    track = SimulatedTrack(
        num_steps=10, fault=lambda entrant, steps: "out of memory" if entrant.ident and steps else ""
    )
    track.enter(Entrant(0, "base"))
    track.enter(Entrant(1, "candidate", FAST))
    assert not track.lap(0, 1, 4, 1).is_last
    last = track.lap(0, 2, 8, 1)
    assert (last.is_last, last.num_steps) == (True, 4)
    assert track.lap(1, 1, 4, 1).failure == "out of memory"
    with pytest.raises(AssertionError, match="is out"):
        track.lap(1, 2, 4, 1)


def test_memory_for_one_means_relaunching() -> None:
    track = SimulatedTrack(num_riders=1, startup_s=lambda recipe: 5.0)
    track.enter(Entrant(0, "base"))
    track.enter(Entrant(1, "candidate", FAST))
    before_s = track.now_s()
    track.lap(0, 1, 4, 1)
    assert track.now_s() - before_s > 5.0
    assert track.most_at_once == 1


def test_memory_is_not_overrun_unnoticed() -> None:
    track = SimulatedTrack(num_riders=2)
    for ident in range(2):
        track.enter(Entrant(ident, "base"))
    with pytest.raises(AssertionError, match="memory holds 2"):
        track.enter(Entrant(2, "base"))


def test_a_recording_is_played_back_in_order() -> None:
    recording = Recording([1.0, 2.0, 3.0, 6.0])
    assert recording.mean(0, 2) == 1.5
    assert recording.mean(3, 2) == 3.5  # and round again
    noise = Noise(random.Random(0), recording, CALM)
    heard = [noise.factor(1) for _ in range(8)]
    assert heard[:4] == pytest.approx(heard[4:])
    assert sorted(heard[:4]) == pytest.approx([1.0, 2.0, 3.0, 6.0])


def test_weather_has_the_size_and_the_memory_that_were_asked_for() -> None:
    noise = Noise(random.Random(1), weather=Weather(0.05, correlation=0.8, drift=0.0, outlier_share=0.0))
    blocks = [noise.factor(8) - 1.0 for _ in range(4000)]
    spread = fmean(block**2 for block in blocks) ** 0.5
    assert spread == pytest.approx(0.05, rel=0.1)
    neighbours = fmean(left * right for left, right in pairwise(blocks)) / spread**2
    assert neighbours == pytest.approx(0.8, abs=0.07)
    gusts = Noise(random.Random(2), weather=Weather(0.0, 0.0, 0.0, outlier_share=0.1, outlier_size=1.0))
    assert fmean(gusts.factor(8) for _ in range(4000)) == pytest.approx(1.1, abs=0.02)
