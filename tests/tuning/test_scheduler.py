from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from slipstream.tuning.comparison import LEADING_ROUNDS, Comparison
from slipstream.tuning.pace_model import PaceModel
from slipstream.tuning.scheduler import RaceScheduler

from slipstream.records import Choice, Recipe, TrialSpec
from slipstream.testing.noise_model import Noise, NoiseModel
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.block_length import BlockPlan
from slipstream.tuning.budget import Budget
from slipstream.tuning.trials import RaceError, RecipeTrials, TrialPool


class RaceSetup:
    def __init__(self, backend: SimulatedBackend, tell: Any, budget_s: float = 300.0) -> None:
        self.backend = backend
        self.pool = TrialPool(backend, tell)
        self.budget = Budget(backend, budget_s)
        self.scheduler = RaceScheduler(
            self.pool, self.budget, tell, seed=0, block_plan=BlockPlan(0.05), pace_model=PaceModel()
        )
        self.base = self.pool.trials("base", Recipe())
        self.settled: list[tuple[str, str | None]] = []

    def comparison(self, name: str, floor: float = 0.0) -> Comparison:
        trials = self.pool.trials("candidate", Recipe((Choice(name),)))
        return Comparison(trials, self.base, alpha=0.01, margin=0.01, floor=lambda: floor)

    def race(self, *names: str, deadline_s: float = 300.0, companions: tuple[RecipeTrials, ...] = ()) -> None:
        comparisons = [self.comparison(name) for name in names]
        self.scheduler.race(comparisons, lambda: deadline_s, self._settle, companions)

    def _settle(self, comparison: Comparison) -> None:
        self.settled.append((str(comparison.trials.recipe), comparison.outcome))
        self.pool.leave(comparison.trials)


@pytest.fixture
def setup(listener: Any) -> Callable[..., RaceSetup]:
    return lambda backend, **how: RaceSetup(backend, listener, **how)


def test_the_next_candidate_takes_the_place_of_one_that_is_decided(setup: Any, listener: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.5, b=2.0, c=0.5), num_trials=2)
    race = setup(backend)
    race.race("a", "b", "c")
    assert race.settled == [("a", "faster"), ("b", "slower"), ("c", "faster")]
    assert listener.entered == ["as it is", "a", "b", "c"], "the base continued all the time"
    assert backend.most_at_once == 2


def test_the_order_of_trials_is_random_in_each_round(setup: Any) -> None:
    round_orders: dict[int, list[int]] = {}

    class Watched(SimulatedBackend):
        def run_block(self, trial: int, round: int, num_steps: int, lead_in: int) -> Any:
            round_orders.setdefault(round, []).append(trial)
            assert lead_in >= 1
            return super().run_block(trial, round, num_steps, lead_in)

    setup(Watched()).race("a", "b", "c")
    full = [tuple(order) for round, order in round_orders.items() if round > 0]
    assert all(sorted(order) == sorted(set(order)) for order in full), "each runs once in a round"
    assert len(set(full)) > 3


def test_a_failed_trial_does_not_affect_the_others(setup: Any) -> None:
    def fault(spec: TrialSpec, num_steps: int) -> str:
        return "out of memory" if spec.recipe.setting_of("a") and num_steps > 20 else ""

    race = setup(SimulatedBackend(choice_factors(a=0.5, b=0.5), fault=fault))
    race.race("a", "b")
    assert race.settled == [("a", "failed"), ("b", "faster")]


def test_a_trial_that_is_too_slow_to_race_still_gets_a_speed(setup: Any) -> None:
    race = setup(SimulatedBackend(choice_factors(a=9.0)))
    comparisons = [race.comparison("a")]
    race.scheduler.race(comparisons, lambda: 300.0, race._settle)
    assert race.settled == [("a", "slower")]
    assert comparisons[0].failure == "9 times the base's step"


def test_a_base_that_fails_once_is_started_again_and_twice_ends_the_race(setup: Any) -> None:
    def once(spec: TrialSpec, num_steps: int) -> str:
        return "killed" if spec.ident == 0 and num_steps > 30 else ""

    race = setup(SimulatedBackend(choice_factors(a=0.5), fault=once))
    race.race("a")
    assert race.settled == [("a", "faster")]

    def always(spec: TrialSpec, num_steps: int) -> str:
        return "killed" if spec.role == "base" and num_steps > 4 else ""

    with pytest.raises(RaceError, match="as it is failed during the race: killed"):
        setup(SimulatedBackend(fault=always)).race("a")


def test_a_base_that_cannot_start_ends_the_race(setup: Any) -> None:
    with pytest.raises(RaceError, match="as it is could not be started: no such file"):
        setup(SimulatedBackend(fault=lambda spec, num_steps: "no such file")).race("a")


def test_a_trial_that_cannot_be_decided_in_time_is_not_started(setup: Any, listener: Any) -> None:
    race = setup(SimulatedBackend(startup_s=lambda recipe: 100.0))
    race.race("a", deadline_s=150.0)
    assert race.settled == [("a", "undecided")] and listener.entered == ["as it is"]


def test_a_doubtful_candidate_needs_no_time_for_a_whole_turn(setup: Any, listener: Any) -> None:
    race = setup(SimulatedBackend(choice_factors(a=9.0), startup_s=lambda recipe: 2.0))
    comparison = race.comparison("a")
    race.scheduler.warm(race.base)
    deadline_s = race.budget.now_s() + race.scheduler.need_s() - 0.1
    race.scheduler.race([race.comparison("b")], lambda: deadline_s, race._settle)
    assert race.settled == [("b", "undecided")] and listener.entered == ["as it is"]
    comparison.is_doubtful = True
    race.scheduler.race([comparison], lambda: deadline_s, race._settle)
    assert race.settled[1:] == [("a", "slower")] and listener.entered == ["as it is", "a"]


def test_every_candidate_has_a_turn_before_any_has_a_second(setup: Any, listener: Any) -> None:
    """b cannot be decided in time and seems to gain; c and d still race."""
    race = setup(SimulatedBackend(choice_factors(b=0.8, c=0.5, d=0.5), num_trials=2, startup_s=lambda recipe: 1.0))
    comparisons = [race.comparison("b", floor=1.0), race.comparison("c"), race.comparison("d")]
    race.scheduler.race(comparisons, lambda: 60.0, race._settle)
    assert race.settled == [("c", "faster"), ("d", "faster"), ("b", "undecided")]
    assert listener.entered == ["as it is", "b", "c", "d", "b"], "b gets the remaining time"


def test_blocks_are_longer_if_trials_are_restarted_for_every_turn(setup: Any) -> None:
    race = setup(SimulatedBackend(choice_factors(a=0.5), num_trials=1))
    race.race("a")
    assert race.settled == [("a", "faster")]
    assert {timing.num_steps for timing in race.base.timings if timing.round > 0} == {32}


def test_short_scripts_are_raced_through_restarts(setup: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.5), num_steps=24, startup_s=lambda recipe: 1.0)
    race = setup(backend)
    race.race("a")
    assert race.settled == [("a", "faster")]
    assert sum(spec.role == "base" for spec in backend.specs) > 1


def test_the_time_of_a_round_includes_its_restarts(setup: Any, listener: Any) -> None:
    race = setup(SimulatedBackend(choice_factors(a=0.5), num_trials=1, startup_s=lambda recipe: 20.0))
    race.scheduler.warm(race.base)
    assert race.scheduler.need_s(is_new=False) > 10 * 2 * 20.0
    race.race("a", "b", "c", deadline_s=3000.0)
    assert max(len(names) for names in listener.races) == 2, "one against one"


def test_the_time_of_a_start_includes_compilation(setup: Any) -> None:
    slow, quick = Recipe((Choice("a"),)), Recipe((Choice("b"),))
    race = setup(SimulatedBackend(choice_factors(), startup_s=lambda recipe: 30.0 if recipe.holds(slow) else 2.0))
    race.race("a", "b", "c", "d")
    assert race.scheduler.pass_s(slow, 9) - race.scheduler.pass_s(quick, 9) == pytest.approx(28.0 / 2), (
        "the cache may save much"
    )
    assert race.scheduler.pass_s(Recipe(), 9) < race.scheduler.pass_s(slow, 9)
    race.race("a", "b")
    assert race.scheduler.pass_s(slow, 9) - race.scheduler.pass_s(quick, 9) == pytest.approx(28.0), (
        "the cache saved nothing"
    )


def test_the_time_for_another_mode_includes_compilation(setup: Any) -> None:
    known = set[Recipe]()

    def startup_s(recipe: Recipe) -> float:
        is_cold = recipe.setting_of("a") is not None and recipe not in known
        known.add(recipe)
        return 30.0 if is_cold else 3.0

    race = setup(SimulatedBackend(choice_factors(), startup_s=startup_s))
    for _ in range(3):
        race.race("a", "b")
    assert race.scheduler.need_s(recompiled="a") - race.scheduler.need_s() == pytest.approx(27.0)


def test_after_an_anchor_has_failed_all_places_are_free(setup: Any) -> None:
    def always(spec: TrialSpec, num_steps: int) -> str:
        return "killed" if spec.role == "base" and num_steps > 4 else ""

    race = setup(SimulatedBackend(fault=always, num_trials=2))
    with pytest.raises(RaceError):
        race.race("a")
    assert race.pool.enter(race.pool.trials("candidate", Recipe((Choice("b"),)))) is None
    assert race.pool.enter(race.pool.trials("candidate", Recipe((Choice("c"),)))) is None


def test_settle_may_return_a_further_comparison(setup: Any) -> None:
    race = setup(SimulatedBackend(choice_factors(a=2.0, b=0.5)))

    def settle(comparison: Comparison) -> Comparison | None:
        race._settle(comparison)
        return race.comparison("b") if comparison.outcome == "slower" else None

    race.scheduler.race([race.comparison("a")], lambda: 300.0, settle)
    assert race.settled == [("a", "slower"), ("b", "faster")]


def test_the_worse_half_is_paused_until_the_better_half_is_decided(setup: Any, listener: Any) -> None:
    noise = Noise(random.Random(2), noise_model=NoiseModel(spread=0.1, drift=0.0, outlier_share=0.0))
    gains = {"a": 0.9, "b": 1.02, "c": 1.02, "d": 1.02, "e": 1.02, "f": 1.02, "g": 1.02}
    race = setup(SimulatedBackend(choice_factors(**gains), noise=noise))
    race.race(*gains, deadline_s=200.0)
    sizes = [len(names) for names in listener.races]
    assert max(sizes) == 8 and min(sizes) <= 5, "the base and all seven, then the better ones"
    assert dict(race.settled)["a"] == "faster"


def test_few_start_at_first_and_others_only_if_the_race_goes_on(setup: Any, listener: Any) -> None:
    race = setup(SimulatedBackend(choice_factors(a=0.8)))
    comparisons = [race.comparison(name, floor=1.0) for name in "abcdef"]
    race.scheduler.race(comparisons, lambda: 300.0 if comparisons[0].sequence.num_rounds < 5 else 0.0, race._settle)
    assert listener.entered == ["as it is", "a", "b", "c", "d"]
    listener.entered.clear()
    comparisons = [race.comparison(name, floor=1.0) for name in "abcdef"]
    race.scheduler.race(comparisons, lambda: 300.0 if comparisons[0].sequence.num_rounds < 7 else 0.0, race._settle)
    assert listener.entered == ["a", "b", "c", "d", "e", "f"]


def test_fewer_start_at_first_if_starts_are_expensive(setup: Any, listener: Any) -> None:
    race = setup(SimulatedBackend(choice_factors(a=0.8), startup_s=lambda recipe: 30.0))
    comparisons = [race.comparison(name, floor=1.0) for name in "abcdef"]
    race.scheduler.race(comparisons, lambda: 300.0 if comparisons[0].sequence.num_rounds < 5 else 0.0, race._settle)
    assert listener.entered == ["as it is", "a", "b"]


def test_a_control_does_not_run_alone_while_candidates_wait(setup: Any, listener: Any) -> None:
    """The first start is so expensive that there seems to be time for one challenger. It is a candidate."""
    backend = SimulatedBackend(choice_factors(a=2.0, b=0.9), startup_s=lambda recipe: 5.0 if recipe.choices else 30.0)
    race = setup(backend)
    control_timings = RecipeTrials("twin", Recipe((Choice("nothing"),)))
    control = Comparison(
        control_timings, race.base, alpha=0.01, margin=0.01, floor=lambda: 0.0, goal="control", max_rounds=24
    )
    comparisons = [race.comparison("a"), control, race.comparison("b")]
    race.scheduler.warm(race.base)
    race.scheduler.race(comparisons, lambda: 85.0, race._settle)
    alone = [names for names in listener.races if sorted(names) == ["as it is", "nothing"]]
    assert not alone and "b" in listener.entered


def test_more_run_together_once_starts_turn_out_to_be_cheap(setup: Any, listener: Any) -> None:
    backend = SimulatedBackend(choice_factors(), startup_s=lambda recipe: 2.0 if recipe.choices else 30.0)
    race = setup(backend)
    race.race("a", "b", "c", "d", deadline_s=90.0)
    assert race.budget.now_s() < 90.0 and max(len(names) for names in listener.races) > 2


def test_a_candidate_that_took_long_to_start_has_time_to_lead(setup: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.7), startup_s=lambda recipe: 22.0 if recipe.choices else 2.0)
    race = setup(backend)
    late = race.comparison("a")
    race.scheduler.race([late], lambda: 12.0, lambda comparison: None)
    assert late.sequence.num_rounds >= LEADING_ROUNDS


def test_a_candidate_without_a_gain_is_paused_after_rounds_as_long_as_its_start(setup: Any, listener: Any) -> None:
    noise = Noise(random.Random(1), noise_model=NoiseModel(spread=0.1, drift=0.0, outlier_share=0.0))
    names = "abcdefgh"
    race = setup(SimulatedBackend(choice_factors(**dict.fromkeys(names, 1.05)), step_s=0.3, noise=noise))
    race.race(*names, deadline_s=290.0)
    assert {*names} <= set(listener.entered) and max(map(len, listener.races)) < 1 + len(names)


def test_the_estimate_for_the_third_start_is_based_on_the_second(setup: Any) -> None:
    """The first start compiles kernels."""
    num_compiled = 0

    def startup_s(recipe: Recipe) -> float:
        nonlocal num_compiled
        if not recipe.choices:
            return 3.0
        num_compiled += 1
        return 40.0 if num_compiled == 1 else 5.0

    race = setup(SimulatedBackend(choice_factors(a=0.5, b=0.5), startup_s=startup_s))
    race.race("a", "b")
    race.scheduler.race([race.comparison("a")], lambda: 300.0, race._settle)
    timing_s = race.scheduler._typical_timing_s()
    assert race.scheduler.pass_s(Recipe((Choice("a"),)), 1) < 6.0 + 10 * timing_s


@pytest.mark.parametrize("is_drifting", [False, True])
def test_a_late_candidate_is_compared_at_the_same_steps(setup: Any, is_drifting: bool) -> None:
    """The anchor has trained for long when the challenger starts. Longer steps would make the challenger seem fast."""
    backend = SimulatedBackend(
        choice_factors(b=0.9), ageing=lambda recipe, num_steps: 1.0 + num_steps / 20 if is_drifting else 1.0
    )
    race = setup(backend)
    race.race("a", deadline_s=40.0)
    assert race.base.age > 12
    late = race.comparison("b")
    race.scheduler.race([late], lambda: 80.0, race._settle)
    assert late.speed().ratio == pytest.approx(1 / 0.9, rel=1e-6)
    uncounted = [timing for timing in late.trials.timings if timing.round < 0]
    counted = [timing for timing in late.trials.timings if timing.round >= 0]
    base_steps = {timing.round: timing.first_step for timing in race.base.timings}
    if is_drifting:
        assert uncounted and all(base_steps[timing.round] == timing.first_step for timing in counted)
        assert race.scheduler.is_slowing
    else:
        assert not uncounted and not race.scheduler.is_slowing, "without drift there is no catching up"


def test_an_anchor_that_is_too_far_ahead_starts_again(setup: Any) -> None:
    backend = SimulatedBackend(ageing=lambda recipe, num_steps: 1.0 + num_steps / 20)
    race = setup(backend, budget_s=25.0)
    race.race("a", deadline_s=30.0)
    old = race.base.trial
    late = race.comparison("b")
    race.scheduler.race([late], lambda: 90.0, race._settle)
    assert race.base.trial != old and late.speed().ratio == pytest.approx(1.0)


@pytest.mark.parametrize(("startup_s", "is_kept"), [(1.0, False), (30.0, False), (60.0, True)])
def test_in_the_final_race_the_old_trial_starts_again_if_that_takes_less_time(
    setup: Any, startup_s: float, is_kept: bool
) -> None:
    """Less time than both new trials need to catch up, at the step time of the unchanged script."""
    backend = SimulatedBackend(choice_factors(a=0.3), ageing=_older, startup_s=lambda recipe: startup_s)
    race = setup(backend, budget_s=600.0)
    comparison = race.comparison("a")
    race.pool.enter(race.base), race.pool.enter(comparison.trials)
    while comparison.trials.age < 500:
        race.pool.run_block(comparison.trials, 1, 4, 1)
    old, fresh = comparison.trials.trial, RecipeTrials("base", Recipe())
    how: Any = {"alpha": 0.05, "margin": 0.01, "floor": lambda: 0.0}
    final = Comparison(comparison.trials, fresh, **how, goal="measure")
    control = Comparison(RecipeTrials("twin", Recipe((Choice("nothing"),))), fresh, **how, goal="control")
    race.scheduler.race([final, control], lambda: 0.0 if final.sequence.num_rounds else 600.0, lambda comparison: None)
    assert (comparison.trials.trial == old) is is_kept
    assert any(timing.round < 0 for timing in fresh.timings) is is_kept


def _older(recipe: Recipe, num_steps: int) -> float:
    return 1.0 + num_steps / 20


def test_a_trial_that_fails_while_it_catches_up_has_failed(setup: Any) -> None:
    def fault(spec: TrialSpec, num_steps: int) -> str:
        return "of its own" if spec.recipe.choices == (Choice("b"),) and num_steps > 6 else ""

    race = setup(SimulatedBackend(ageing=_older, fault=fault))
    race.race("a", deadline_s=40.0)
    late = race.comparison("b")
    race.scheduler.race([late], lambda: 80.0, race._settle)
    assert late.outcome == "failed" and late.failure == "of its own" and not late.sequence.num_rounds


def test_a_script_that_ends_while_it_catches_up_continues(setup: Any) -> None:
    race = setup(SimulatedBackend(choice_factors(b=0.9), ageing=_older, num_steps=60))
    race.race("a", deadline_s=40.0)
    late = race.comparison("b")
    race.scheduler.race([late], lambda: 80.0, race._settle)
    assert late.speed().ratio == pytest.approx(1 / 0.9, rel=0.02)


def test_there_is_no_catching_up_if_trials_are_restarted(setup: Any) -> None:
    """Every block runs in a process of its own, from the first step on."""
    race = setup(SimulatedBackend(choice_factors(b=0.9), ageing=_older, num_trials=1))
    late = race.comparison("b")
    race.scheduler.race([late], lambda: 200.0, race._settle)
    assert late.trials.timings and all(timing.round > 0 for timing in late.trials.timings)
