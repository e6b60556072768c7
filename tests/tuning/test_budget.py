from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from slipstream.diagnose import diagnose
from slipstream.testing.load_bursts import LoadBursts
from slipstream.testing.made_sessions import made_session
from slipstream.testing.noise_model import Noise, NoiseModel
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.budget import (
    LONGEST_S,
    MOST_LATE,
    MOST_NAMED_EXTENSION,
    SHORTEST_S,
    USUAL_PAIRS,
    Budget,
    Costs,
    round_up,
)


class Clock(SimulatedBackend):
    """A clock that a test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def now_s(self) -> float:
        return self.seconds


def _costs(step_s: float = 0.05, start_s: float = 4.0, cold_start_s: float = 6.0) -> Costs:
    costs = Costs(step_s, (4, 1))
    costs.started(3 * start_s)  # the first start prepares what later ones share
    costs.started(start_s)
    costs.started(cold_start_s, is_cold=True)
    return costs


def test_the_default_budget_follows_the_script() -> None:
    """Start-up, step time and the number of arms all count."""

    def default_s(num_arms: int = 8, **of_script: float) -> float:
        budget = Budget(Clock(), None)
        assert budget.follow(_costs(**of_script), num_arms)
        return budget.budget_s

    usual_s = default_s()
    assert default_s(num_arms=16) > usual_s and default_s(num_arms=2) < usual_s
    assert default_s(step_s=0.5) > usual_s
    assert default_s(start_s=20.0, cold_start_s=30.0) > usual_s
    assert default_s(step_s=1e3) == LONGEST_S and default_s(0, start_s=0.01, cold_start_s=0.01) == SHORTEST_S


def test_a_named_budget_does_not_follow_the_script() -> None:
    budget = Budget(Clock(), 90.0)
    assert not budget.follow(_costs(), 20) and budget.budget_s == 90.0


@pytest.mark.parametrize(("named_s", "most_s"), [(None, 2 * SHORTEST_S), (200.0, 200.0 * (1 + MOST_NAMED_EXTENSION))])
def test_lost_time_is_added_up_to_a_limit(named_s: float | None, most_s: float) -> None:
    budget = Budget(Clock(), named_s)
    before_s = budget.budget_s
    budget.lose(10.0)
    assert budget.budget_s == before_s + 10.0
    budget.lose(1e6)
    assert budget.budget_s == pytest.approx(most_s)


def test_a_default_budget_grows_up_to_a_limit_if_more_time_is_needed() -> None:
    clock = Clock()
    budget = Budget(clock, None)
    assert budget.follow(_costs(), 8)
    announced_s = budget.budget_s
    clock.seconds = announced_s / 2
    budget.extend(announced_s / 4)
    assert budget.budget_s == announced_s, "it never becomes shorter"
    budget.lose(10.0)
    budget.extend(0.6 * announced_s)
    assert budget.left_s() == pytest.approx(0.6 * announced_s)
    budget.extend(math.inf)
    assert budget.budget_s == pytest.approx(MOST_LATE * announced_s + 10.0)


def test_a_named_budget_does_not_grow() -> None:
    budget = Budget(Clock(), 90.0)
    budget.extend(math.inf)
    assert budget.budget_s == 90.0


def test_what_is_left_of_the_budget() -> None:
    clock = Clock()
    clock.seconds = 100.0
    budget = Budget(clock, 200.0)
    assert (budget.end_s(), budget.end_s(0.4)) == (300.0, 220.0)
    clock.seconds = 150.0
    assert (budget.spent_s(), budget.left_s()) == (50.0, 150.0)
    clock.seconds = 400.0
    assert budget.left_s() == 0.0


def test_the_costs_are_those_that_were_measured() -> None:
    costs = _costs()
    assert (costs.start_s(), costs.cold_start_s(), costs.block_s()) == (4.0, 6.0, pytest.approx(0.25))
    for seconds in (1.0, 1.1, 9.0):
        costs.blocked(seconds)
    assert costs.block_s() == 1.1
    assert costs.race_s(3, 2) == pytest.approx(3 * (4.0 + 2.2))
    assert Costs(0.05, (4, 1)).start_s() == 0.0
    first = Costs(0.05, (4, 1))
    first.started(12.0)
    assert first.start_s() == first.cold_start_s() == 12.0, "until more is known"


def test_as_many_arms_as_a_pass_has_time_for() -> None:
    costs = _costs()
    number = costs.num_affordable(100.0, num_fixed=2)
    assert number > 1
    assert costs.pass_s(number, 2) <= 100.0 < costs.pass_s(number + 1, 2)
    assert costs.num_affordable(1.0, num_fixed=2) == 0


def test_a_default_budget_has_time_for_the_usual_number_of_pairs() -> None:
    costs = _costs()
    assert costs.whole_s(8) >= costs.pass_s(8, 2) + USUAL_PAIRS * costs.pair_s()


def test_budgets_are_round_numbers() -> None:
    assert [round_up(seconds) for seconds in (1.0, 61.0, 290.0, 301.0, 1e6)] == [60.0, 90.0, 300.0, 360.0, 3600.0]


def test_the_default_budget_is_announced(run: Any, technique: Any, listener: Any) -> None:
    run(SimulatedBackend(choice_factors(a=0.5)), {"a": technique()}, budget_s=300.0)
    assert not any("--budget" in note for note in listener.notes)
    run(SimulatedBackend(choice_factors(a=0.5)), {"a": technique()})
    assert any(note.startswith("This takes up to ") and "--budget" in note for note in listener.notes)


def _bursts(seed: int) -> Callable[[float], float]:
    return LoadBursts(seed).num_cores


@pytest.mark.parametrize("budget_s", [120.0, 400.0])
@pytest.mark.parametrize("step_s", [0.02, 1.5])
@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_named_budget_holds(
    run: Any, technique: Any, budget_s: float, step_s: float, is_busy: bool, seed: int
) -> None:
    """Within 20%, waiting included."""
    backend = SimulatedBackend(
        choice_factors(a=0.8),
        step_s=step_s,
        noise=Noise(random.Random(seed), noise_model=NoiseModel()),
        startup_s=lambda recipe: 5.0,
        lottery=0.1,
        load=_bursts(seed) if is_busy else lambda now_s: 0.0,
    )
    seen = diagnose(made_session(forward_ms=step_s * 400, backward_ms=step_s * 600))
    known = {"a": technique(), **{f"u{number}": technique() for number in range(9)}}
    run(backend, known, seen, budget_s=budget_s)
    assert backend.now_s() <= 1.2 * budget_s


@pytest.mark.parametrize("seed", range(4))
def test_the_default_budget_at_most_doubles_under_load(run: Any, technique: Any, listener: Any, seed: int) -> None:
    backend = SimulatedBackend(choice_factors(a=0.8), lottery=0.1, load=_bursts(seed), seed=seed)
    known = {"a": technique(), **{f"u{number}": technique() for number in range(5)}}
    tuning = run(backend, known)
    (note,) = [note for note in listener.notes if note.startswith("This takes up to")]
    assert backend.now_s() <= 2 * 60 * float(note.split()[4]) * 1.05
    assert math.isfinite(tuning.waited_s) and tuning.num_discarded > 0
