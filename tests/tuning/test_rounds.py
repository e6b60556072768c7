"""Rounds on the simulated backend: which count, when they wait, and when they end."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from slipstream.records import Choice, Failure, Recipe, TechniqueNote, TrialRecord, TrialSpec
from slipstream.testing.made_techniques import RecordingListener
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.block_length import BlockPlan
from slipstream.tuning.budget import Budget, Costs
from slipstream.tuning.rounds import (
    MOST_BASE_STARTS,
    MOST_TIMES_ROUNDS,
    MOST_WAIT_S,
    PATIENCE_S,
    BusyError,
    RoundRunner,
)
from slipstream.tuning.trials import RaceError, RecipeTrials, TrialPool

STEP_S = 0.05


class Rounds:
    """A runner with its pool, on a simulated backend."""

    def __init__(self, backend: SimulatedBackend, budget_s: float = 600.0) -> None:
        self.backend = backend
        self.tell = RecordingListener()
        self.pool = TrialPool(backend, self.tell)
        self.budget, self.costs = Budget(backend, budget_s), Costs(STEP_S, (5, 1))
        self.runner = RoundRunner(self.pool, self.budget, self.costs, self.tell, BlockPlan(STEP_S), 2.0, seed=0)
        self.base = self.pool.trials("base", Recipe())

    def trials(self, *names: str) -> list[RecipeTrials]:
        return [self.pool.trials("candidate", Recipe((Choice(name),))) for name in names]


def _at(*spans: tuple[float, float], cores: float = 1.0) -> Callable[[float], float]:
    """Another program uses the cores in these seconds."""
    return lambda now_s: cores if any(start_s <= now_s < end_s for start_s, end_s in spans) else 0.0


def test_all_trials_race_in_new_processes() -> None:
    rounds = Rounds(SimulatedBackend(choice_factors(a=0.8, b=2.0)))
    a, b = rounds.trials("a", "b")
    for _ in range(2):
        race = rounds.runner.race(rounds.base, [a, b], 4)
        assert len(race.rounds) == 4
        assert race.gain(a, rounds.base) == pytest.approx(-math.log(0.8))
        assert race.gain(b, rounds.base) == pytest.approx(-math.log(2.0))
    assert len(rounds.backend.specs) == 6, "luck of the first ones does not last"


def test_a_round_beside_other_load_does_not_count_as_a_whole() -> None:
    """The load is there during one block of it, and for the recipe it would look like a loss."""
    rounds = Rounds(SimulatedBackend(choice_factors(a=0.8), load=_at((8.2, 9.0), (10.5, 11.0))))
    (a,) = rounds.trials("a")
    race = rounds.runner.race(rounds.base, [a], 6)
    assert len(race.rounds) == 6 and all(len(one) == 2 for one in race.rounds)
    assert race.log_ratios(a, rounds.base) == pytest.approx([-math.log(0.8)] * 6)
    load = rounds.runner.load
    assert load.num_rounds > 6 and len(load.foreign_cores) == load.num_rounds - 6
    assert sum(race.loaded.values()) >= 1 and load.waited_s > 0
    assert 0 < rounds.runner.mean_foreign_cores() <= 1


def test_a_round_that_takes_long_counts_if_no_other_program_ran() -> None:
    """A block's own duration is no evidence of load."""
    rounds = Rounds(SimulatedBackend(choice_factors(a=0.8), pace=lambda now_s: 3.0 if 9.0 < now_s < 12.0 else 1.0))
    (a,) = rounds.trials("a")
    assert len(rounds.runner.race(rounds.base, [a], 8).rounds) == rounds.runner.load.num_rounds == 8


def test_it_waits_while_other_programs_run_and_says_so() -> None:
    rounds = Rounds(SimulatedBackend(load=_at((8.0, 18.0))))
    rounds.runner.race(rounds.base, rounds.trials("a"), 3)
    assert 8 <= rounds.runner.load.waited_s <= 11
    assert rounds.tell.waits[0] > 0.25 and rounds.tell.waits[-1] == 0.0, "how much load, and when it is over"


def test_a_wait_is_short_and_a_round_is_tried_again() -> None:
    rounds = Rounds(SimulatedBackend(load=_at((8.0, 60.0))))
    rounds.runner.race(rounds.base, rounds.trials("a"), 1)
    assert rounds.tell.waits.count(0.0) >= 2, "a wait ends after a while, and another round is tried"
    assert rounds.runner.load.waited_s <= 52 + 2 * MOST_WAIT_S


def test_time_that_was_lost_is_added_to_the_budget() -> None:
    rounds = Rounds(SimulatedBackend(load=_at((8.0, 40.0))))
    rounds.runner.race(rounds.base, rounds.trials("a"), 3)
    assert rounds.budget.budget_s > 620


def test_a_machine_that_stays_busy_ends_the_tuning() -> None:
    rounds = Rounds(SimulatedBackend(load=_at((8.0, math.inf), cores=2.0)), 6000.0)
    with pytest.raises(BusyError, match=r"other programs used 1.* cores all the time"):
        rounds.runner.race(rounds.base, rounds.trials("a"), 3)
    assert PATIENCE_S <= rounds.backend.now_s() - 8.0 <= PATIENCE_S + MOST_WAIT_S + 10
    assert rounds.tell.races[-1] and not rounds.tell.is_racing


def test_a_load_that_comes_and_goes_does_not_end_it() -> None:
    """Rounds that count in between show that the machine is not busy all the time."""
    spans = tuple((float(start_s), start_s + 25.0) for start_s in range(10, 1000, 30))
    rounds = Rounds(SimulatedBackend(choice_factors(a=0.8), load=_at(*spans)), 6000.0)
    (a,) = rounds.trials("a")
    race = rounds.runner.race(rounds.base, [a], 30)
    assert len(race.rounds) == 30 and race.gain(a, rounds.base) == pytest.approx(-math.log(0.8))


def test_a_slow_arm_costs_a_round_little() -> None:
    def race_s(factor: float) -> float:
        rounds = Rounds(SimulatedBackend(choice_factors(slow=factor), step_s=0.1))
        begun_s = rounds.backend.now_s()
        race = rounds.runner.race(rounds.base, rounds.trials("slow"), 6)
        (slow,) = rounds.trials("slow")
        assert race.gain(slow, rounds.base) == pytest.approx(-math.log(factor)), "it is timed nevertheless"
        return rounds.backend.now_s() - begun_s

    assert race_s(30.0) < 2.5 * race_s(3.0)


def test_arms_that_do_not_fit_in_memory_together_race_one_after_the_other() -> None:
    rounds = Rounds(SimulatedBackend(choice_factors(a=0.5, b=0.6, c=0.7), num_trials=2))
    others = rounds.trials(*"abc")
    race = rounds.runner.race(rounds.base, others, 3)
    gains = [race.gain(trials, rounds.base) for trials in others]
    assert gains == pytest.approx([-math.log(factor) for factor in (0.5, 0.6, 0.7)])
    assert [spec.role for spec in rounds.backend.specs] == ["base", "candidate"] * 3, "each beside a new base"
    assert rounds.backend.most_at_once == 2


def test_one_trial_at_a_time_is_restarted_for_every_turn() -> None:
    rounds = Rounds(SimulatedBackend(choice_factors(a=0.5), num_trials=1))
    (a,) = rounds.trials("a")
    race = rounds.runner.race(rounds.base, [a], 3)
    assert race.gain(a, rounds.base) == pytest.approx(-math.log(0.5)) and rounds.backend.most_at_once == 1


def test_an_arm_that_fails_leaves_the_race() -> None:
    def fault(spec: TrialSpec, num_steps: int) -> str:
        names = {choice.technique for choice in spec.recipe.choices}
        return "cannot start" if "a" in names else "raised" if "b" in names and num_steps > 10 else ""

    rounds = Rounds(SimulatedBackend(choice_factors(c=0.5), fault=fault))
    a, b, c = rounds.trials(*"abc")
    race = rounds.runner.race(rounds.base, [a, b, c], 6)
    assert race.failures == {id(a): Failure("cannot start"), id(b): Failure("raised")}
    assert race.gain(a, rounds.base) is None and len(race.log_ratios(c, rounds.base)) == 6


def test_an_anchor_that_ends_early_is_started_again() -> None:
    """The race goes on, and the rounds before count."""
    num_failures = 0

    def fault(spec: TrialSpec, num_steps: int) -> str:
        nonlocal num_failures
        is_hit = spec.role == "base" and num_steps > 20 and num_failures < MOST_BASE_STARTS - 1
        num_failures += is_hit
        return "killed" if is_hit else ""

    rounds = Rounds(SimulatedBackend(choice_factors(a=0.5), fault=fault))
    (a,) = rounds.trials("a")
    race = rounds.runner.race(rounds.base, [a], 12)
    assert [spec.role for spec in rounds.backend.specs].count("base") == MOST_BASE_STARTS
    assert len(race.log_ratios(a, rounds.base)) >= 10 and not race.failures
    assert race.gain(a, rounds.base) == pytest.approx(-math.log(0.5))


def test_an_anchor_that_always_fails_is_an_error() -> None:
    rounds = Rounds(SimulatedBackend(fault=lambda spec, num_steps: "no such file" if spec.role == "base" else ""))
    with pytest.raises(RaceError, match=r"as it is could not be started: no such file\. Copies of the script run"):
        rounds.runner.race(rounds.base, rounds.trials("a"), 3)


def test_a_recipe_whose_technique_changed_nothing_is_not_raced() -> None:
    class Inert(SimulatedBackend):
        def record(self, trial: int) -> TrialRecord:
            record = super().record(trial)
            names = {choice.technique for choice in record.spec.recipe.choices}
            declined = [TechniqueNote("declines", "no loader")] if "declines" in names else []
            return TrialRecord(record.spec, record.timings, changes=[], declined=declined)

    rounds = Rounds(Inert())
    declines, idle = rounds.trials("declines", "idle")
    race = rounds.runner.race(rounds.base, [declines, idle], 3)
    assert [race.inert[id(one)].cause for one in (declines, idle)] == ["declined", "no_effect"]
    assert race.inert[id(declines)].reason == "no loader"
    assert not declines.timings and not idle.timings


def test_a_race_that_is_not_clear_goes_on_up_to_a_limit() -> None:
    rounds = Rounds(SimulatedBackend(choice_factors(a=0.8)))
    (a,) = rounds.trials("a")
    assert len(rounds.runner.race(rounds.base, [a], 4, is_enough=lambda race: False).rounds) == 4 * MOST_TIMES_ROUNDS
    assert len(rounds.runner.race(rounds.base, [a], 4, is_enough=lambda race: len(race.rounds) > 6).rounds) == 7


def test_after_the_deadline_no_further_round_begins() -> None:
    rounds = Rounds(SimulatedBackend(choice_factors(a=0.8)))
    (a,) = rounds.trials("a")
    race = rounds.runner.race(rounds.base, [a], 100, deadline_s=15.0)
    assert 1 < len(race.rounds) < 40 and rounds.backend.now_s() < 16
    assert len(rounds.runner.race(rounds.base, [a], 100, deadline_s=0.0).rounds) == 1, "one round at least"


def test_a_trial_whose_start_would_take_too_long_does_not_start_again() -> None:
    backend = SimulatedBackend(
        choice_factors(), startup_s=lambda recipe: 40.0 if recipe.setting_of("c") is not None else 1.0
    )
    rounds = Rounds(backend)
    a, b, c = rounds.trials("a", "b", "c")
    assert rounds.runner.race(rounds.base, [a, c, b], 2).gain(c, rounds.base) is not None
    race = rounds.runner.race(rounds.base, [a, c, b], 2, backend.now_s() + 20.0)
    assert race.gain(c, rounds.base) is None and not race.failures
    assert race.gain(a, rounds.base) is not None and race.gain(b, rounds.base) is not None


def test_a_ratio_is_clear_beyond_two_standard_errors() -> None:
    rounds = Rounds(SimulatedBackend())
    (a,) = rounds.trials("a")

    def is_clear(*log_ratios: float) -> bool:
        race = rounds.runner.race(rounds.base, [], 1)
        race.rounds = [{id(rounds.base): one, id(a): 0.0} for one in log_ratios]
        return race.is_clear(a, rounds.base, 0.01)

    assert is_clear(0.3, 0.31, 0.29) and is_clear(-0.3, -0.31, -0.29)
    assert not is_clear(0.3, -0.3, 0.05) and not is_clear(0.3)
