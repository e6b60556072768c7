from __future__ import annotations

import random
from itertools import groupby, islice, pairwise
from statistics import fmean

import pytest

from slipstream.records import (
    Choice,
    Failure,
    Recipe,
    TechniqueNote,
    TrialSpec,
)
from slipstream.testing.load_bursts import BUSY_SHARE, LONGEST_S, LoadBursts
from slipstream.testing.noise_model import CALM, Noise, NoiseModel, NoiseRecording
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors

FAST = Recipe((Choice("fast"),))


def test_time_passes_while_trials_start_and_run() -> None:
    backend = SimulatedBackend(step_s=0.1, startup_s=lambda recipe: 3.0)
    assert backend.enter(TrialSpec(0, "base")) is None
    assert backend.now_s() == pytest.approx(3.0)
    timing = backend.run_block(0, 1, num_steps=8, lead_in=2)
    assert backend.now_s() == pytest.approx(4.0)
    assert timing.step_s == pytest.approx(0.1)
    assert (timing.first_step, timing.num_steps, timing.num_samples) == (2, 8, 8 * 32)


def test_a_trial_that_is_expected_starts_beside_another() -> None:
    backend = SimulatedBackend(startup_s=lambda recipe: 4.0, beside=0.75)
    backend.enter(TrialSpec(0, "base"))
    backend.expect(TrialSpec(2, "candidate", FAST))
    backend.enter(TrialSpec(1, "candidate", FAST))
    assert backend.now_s() == pytest.approx(8.0)
    backend.enter(TrialSpec(2, "candidate", FAST))
    assert backend.now_s() == pytest.approx(9.0), "three quarters were done"
    backend.expect(TrialSpec(4, "candidate", FAST))
    backend.enter(TrialSpec(3, "candidate", FAST))
    backend.run_block(0, 1, 4, 1)
    before_s = backend.now_s()
    backend.enter(TrialSpec(4, "candidate", FAST))
    assert backend.now_s() - before_s == pytest.approx(4.0), "nobody starts beside a block"


def test_recipes_have_the_step_times_that_were_chosen() -> None:
    backend = SimulatedBackend(choice_factors(fast=0.5))
    for ident, recipe in enumerate((Recipe(), FAST)):
        backend.enter(TrialSpec(ident, "candidate" if ident else "base", recipe))
    assert backend.run_block(1, 1, 4, 1).step_s == pytest.approx(0.5 * backend.run_block(0, 1, 4, 1).step_s)
    assert backend.record(1).changes == [TechniqueNote("fast", "fast")]


def test_a_script_ends_and_a_trial_fails_as_configured() -> None:
    backend = SimulatedBackend(num_steps=10, fault=lambda spec, steps: "out of memory" if spec.ident and steps else "")
    backend.enter(TrialSpec(0, "base"))
    backend.enter(TrialSpec(1, "candidate", FAST))
    assert not backend.run_block(0, 1, 4, 1).is_last
    last = backend.run_block(0, 2, 8, 1)
    assert (last.is_last, last.num_steps) == (True, 4)
    assert backend.run_block(1, 1, 4, 1).failure == Failure("out of memory")
    with pytest.raises(AssertionError, match="is out"):
        backend.run_block(1, 2, 4, 1)


def test_memory_for_one_means_relaunching() -> None:
    backend = SimulatedBackend(num_trials=1, startup_s=lambda recipe: 5.0)
    backend.enter(TrialSpec(0, "base"))
    backend.enter(TrialSpec(1, "candidate", FAST))
    before_s = backend.now_s()
    backend.run_block(0, 1, 4, 1)
    assert backend.now_s() - before_s > 5.0
    assert backend.most_at_once == 1


def test_memory_is_not_overrun_unnoticed() -> None:
    backend = SimulatedBackend(num_trials=2)
    for ident in range(2):
        backend.enter(TrialSpec(ident, "base"))
    with pytest.raises(AssertionError, match="memory holds 2"):
        backend.enter(TrialSpec(2, "base"))


def test_a_block_ends_at_its_limit_but_times_a_step() -> None:
    backend = SimulatedBackend(step_s=0.1)
    backend.enter(TrialSpec(0, "base"))
    short = backend.run_block(0, 1, num_steps=100, lead_in=2, limit_s=0.75)
    assert (short.first_step, short.num_steps) == (2, 6), "the first step that ends later than the limit is the last"
    assert backend.run_block(0, 2, num_steps=100, lead_in=2, limit_s=0.0).num_steps == 1
    third = backend.run_block(0, 3, num_steps=4, lead_in=2, limit_s=9.0)
    assert (third.first_step, third.num_steps) == (13, 4)


def test_other_programs_slow_steps_down_and_are_seen() -> None:
    backend = SimulatedBackend(step_s=0.1, load=lambda now_s: 2.0 if now_s >= 10.0 else 0.0)
    backend.enter(TrialSpec(0, "base"))
    assert backend.run_block(0, 1, 4, 1).foreign_cores == 0.0
    assert backend.wait(10.0 - backend.now_s()) == 0.0
    assert backend.now_s() == pytest.approx(10.0)
    loaded = backend.run_block(0, 2, 4, 1)
    assert loaded.step_s == pytest.approx(0.2), "two threads of ours and two of others share two cores"
    assert loaded.foreign_cores == pytest.approx(1.0)
    assert backend.wait(4.0) == pytest.approx(2.0), "paused trials leave the cores to others"


def test_a_machine_that_slows_down_slows_starts_and_steps() -> None:
    backend = SimulatedBackend(step_s=0.1, startup_s=lambda recipe: 4.0, pace=lambda now_s: 1.5)
    backend.enter(TrialSpec(0, "base"))
    assert backend.now_s() == pytest.approx(6.0)
    timing = backend.run_block(0, 1, 4, 1)
    assert (timing.step_s, timing.foreign_cores) == (pytest.approx(0.15), 0.0)


def test_cold_trials_start_in_their_own_time() -> None:
    backend = SimulatedBackend(startup_s=lambda recipe: 2.0, cold_start_s=lambda recipe: 4.0)
    backend.enter(TrialSpec(0, "base"))
    backend.enter(TrialSpec(1, "base", is_cold=True))
    assert backend.now_s() == pytest.approx(6.0)
    assert [backend.record(ident).startup_s for ident in range(2)] == [2.0, 4.0]


@pytest.mark.parametrize(("lottery", "num_speeds"), [({"lottery": 0.1}, 6), ({"shared_lottery": 0.1}, 4)])
def test_forked_trials_may_share_their_luck_and_cold_ones_never_do(lottery: dict[str, float], num_speeds: int) -> None:
    backend, speeds = SimulatedBackend(**lottery), set()  # type: ignore[arg-type]
    for ident in range(6):
        backend.enter(TrialSpec(ident, "base", is_cold=ident > 2))
        speeds.add(round(backend.run_block(ident, 1, 4, 1).step_s, 9))
    assert len(speeds) == num_speeds


def test_bursts_have_the_share_and_the_lengths_that_were_asked_for() -> None:
    bursts = LoadBursts(seed=0)
    num_cores = [bursts.num_cores(now_s) for now_s in range(100_000)]
    assert sum(map(bool, num_cores)) / len(num_cores) == pytest.approx(BUSY_SHARE, abs=0.03)
    assert set(num_cores) == {0, 1, 2}
    lengths = [sum(1 for _ in same) for is_busy, same in groupby(num_cores, bool) if is_busy]
    assert max(lengths) > LONGEST_S - 10 and min(lengths) <= 3


def test_a_recording_is_played_back_in_order() -> None:
    recording = NoiseRecording([1.0, 2.0, 3.0, 6.0])
    noise = Noise(random.Random(0), recording, CALM)
    received = [factor for _ in range(4) for factor in islice(noise.block(), 2)]
    assert received[:4] == pytest.approx(received[4:]), "a block continues where the one before it ended"
    assert sorted(received[:4]) == pytest.approx([1.0, 2.0, 3.0, 6.0])


def test_noise_model_has_the_size_and_the_memory_that_were_asked_for() -> None:
    noise = Noise(random.Random(1), noise_model=NoiseModel(0.05, correlation=0.8, drift=0.0, outlier_share=0.0))
    blocks = [next(noise.block()) - 1.0 for _ in range(4000)]
    spread = fmean(block**2 for block in blocks) ** 0.5
    assert spread == pytest.approx(0.05, rel=0.1)
    neighbours = fmean(left * right for left, right in pairwise(blocks)) / spread**2
    assert neighbours == pytest.approx(0.8, abs=0.07)
    gusts = Noise(random.Random(2), noise_model=NoiseModel(0.0, 0.0, 0.0, outlier_share=0.1, outlier_size=1.0))
    assert fmean(next(gusts.block()) for _ in range(4000)) == pytest.approx(1.1, abs=0.02)
