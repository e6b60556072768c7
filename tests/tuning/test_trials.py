from __future__ import annotations

from slipstream.records import (
    Choice,
    Failure,
    Recipe,
)
from slipstream.testing.simulated_backend import SimulatedBackend
from slipstream.tuning.progress import SilentListener
from slipstream.tuning.trials import TrialPool


def _recipe(name: str) -> Recipe:
    return Recipe((Choice(name),))


def test_a_script_that_ends_is_started_again() -> None:
    backend = SimulatedBackend(num_steps=25)
    pool = TrialPool(backend, SilentListener())
    trials = pool.trials("base", Recipe())
    timings = [pool.run_block(trials, round, 8, 1) for round in range(6)]
    assert not any(timing.failure for timing in timings)
    assert [timing.is_last for timing in timings] == [False, False, True] * 2
    assert len(backend.specs) == 2 and len(trials.past) == 2


def test_a_short_last_block_does_not_count() -> None:
    pool = TrialPool(SimulatedBackend(num_steps=22), SilentListener())
    trials = pool.trials("base", Recipe())
    timings = [pool.run_block(trials, round, 8, 1) for round in range(3)]
    assert timings[-1].num_steps == 3 and timings[-1].is_disturbed


def test_a_script_too_short_to_time_fails_with_a_reason() -> None:
    pool = TrialPool(SimulatedBackend(num_steps=4), SilentListener())
    timing = pool.run_block(pool.trials("base", Recipe()), 0, 8, 1)
    assert timing.failure == Failure("the script ended after 4 steps, too few to time it", "ended", 4)


def test_one_timed_block_is_enough_for_a_script_that_ends() -> None:
    pool = TrialPool(SimulatedBackend(num_steps=10), SilentListener())
    trials = pool.trials("base", Recipe())
    timings = [pool.run_block(trials, round, 8, 1) for round in range(4)]
    assert not any(timing.failure for timing in timings)
    assert [timing.is_disturbed for timing in timings] == [False, True, False, True]


def test_if_one_trial_fits_in_memory_there_is_one_challenger() -> None:
    pool = TrialPool(SimulatedBackend(num_trials=1), SilentListener())
    assert pool.num_challengers() == 1 and pool.num_challengers(num_fixed=2) == 0


def test_the_fingerprint_is_that_of_the_trial_that_reached_the_last_step() -> None:
    pool = TrialPool(SimulatedBackend(num_steps=25), SilentListener())
    trials = pool.trials("base", Recipe())
    for round in range(4):
        pool.run_block(trials, round, 8, 1)
    record = pool.record(trials)
    assert max(step for step, _ in record.fingerprint.losses) == 24
    assert len(record.timings) == 4


def test_idle_trials_are_ended_when_memory_is_needed_and_the_base_last() -> None:
    backend = SimulatedBackend(num_trials=3)
    pool = TrialPool(backend, SilentListener())
    base, a, b, c = (pool.trials("base", Recipe()), *(pool.trials("candidate", _recipe(n)) for n in "abc"))
    for trials in (base, a, b):
        assert pool.enter(trials) is None
    pool.release(base)
    pool.release(b)
    assert pool.enter(c) is None
    assert b.trial is None and base.trial is not None and a.trial is not None
    assert pool.run_block(base, 0, 4, 1).num_steps == 4
    assert backend.most_at_once == 3


def test_a_recipe_keeps_its_running_trial() -> None:
    backend = SimulatedBackend()
    pool = TrialPool(backend, SilentListener())
    pool.enter(pool.trials("candidate", _recipe("a")))
    pool.release(pool.trials("candidate", _recipe("a")))
    pool.enter(pool.trials("candidate", _recipe("a")))
    assert len(backend.specs) == 1


def test_a_trial_that_could_not_start_leaves_a_record() -> None:
    pool = TrialPool(SimulatedBackend(fault=lambda spec, num_steps: "no memory"), SilentListener())
    trials = pool.trials("candidate", _recipe("a"))
    assert pool.enter(trials) == Failure("no memory")
    assert trials.trial is None and [record.failure for record in pool.past] == [Failure("no memory")]
