"""A few dozen of the thousands of tunings that benchmarks/never_fooled.py runs. The seeds are fixed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from slipstream.testing.noise_model import CALM, NoiseModel, NoiseRecording
from slipstream.testing.simulated_tunings import SimulatedOutcome, simulate

NOISE = Path(__file__).parents[2] / "benchmarks" / "results" / "noise.json"
NUM_USELESS, NUM_USEFUL = 24, 12


@cache
def _useless() -> list[SimulatedOutcome]:
    """Half of them use the recorded noise of a machine, half use simulated noise."""
    recording = NoiseRecording.read(NOISE)
    made = [simulate(seed) for seed in range(NUM_USELESS // 2)]
    return made + [
        simulate(seed, recording=recording, noise_model=NoiseModel(spread=0.01)) for seed in range(NUM_USELESS // 2)
    ]


@cache
def _useful() -> list[SimulatedOutcome]:
    return [simulate(seed, gain=1.05) for seed in range(NUM_USEFUL)]


def test_useless_candidates_are_not_kept() -> None:
    # 5% would be one. Far fewer are accepted, because the promise holds at all times and for all candidates together.
    assert sum(bool(one.kept) for one in _useless()) <= 1


def test_a_true_gain_of_five_percent_is_found() -> None:
    assert sum(one.has_found for one in _useful()) >= 0.9 * NUM_USEFUL


def test_large_gains_are_found_whatever_the_machine_does() -> None:
    steady = NoiseRecording.read(NOISE, "steady_laps")
    assert simulate(0, gain=1.2, recording=steady, noise_model=CALM, has_bursts=True).has_found
    assert simulate(1, gain=1.2, recording=steady, noise_model=CALM, late_pace=1.3).has_found


def test_processes_that_differ_for_life_do_not_fool() -> None:
    assert sum(bool(simulate(seed, lottery=0.1).kept) for seed in range(NUM_USELESS)) <= 2


def test_intervals_hold_the_truth() -> None:
    held = [speed.low <= truth <= speed.high for one in (*_useless(), *_useful()) for truth, speed in one.intervals]
    assert len(held) >= NUM_USEFUL
    assert sum(held) >= len(held) - 1
