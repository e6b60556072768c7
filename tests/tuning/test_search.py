"""Complete tunings on a simulated backend: the order of the phases, numerics, load, interruptions."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Choice, Fingerprint, Recipe, Session, TrialSpec
from slipstream.techniques._core.card import no
from slipstream.testing.load_bursts import LoadBursts
from slipstream.testing.made_fingerprints import made_fingerprint, made_fingerprint_of
from slipstream.testing.made_sessions import made_session
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.trials import RaceError


def _recipe(**choices: Any) -> Recipe:
    return Recipe(tuple(Choice(name, setting) for name, setting in choices.items()))


def test_every_verdict_is_reported_as_soon_as_it_is_known(run: Any, technique: Any, listener: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.8)), {"a": technique(), "b": technique(answer=no("not here"))})
    told = [(one.kind, one.technique) for one in listener.verdicts]
    assert told[0] == ("single", "b") and told[-1] == ("total", "recipe")
    assert set(told) == {(one.kind, one.technique) for one in tuning.verdicts if one.kind != "noise"}


def test_the_best_recipe_so_far_is_always_known(run: Any, technique: Any, listener: Any) -> None:
    def factor(recipe: Recipe) -> float:
        return (0.3 if recipe.setting_of("b") else 0.5) if recipe.setting_of("a") else 1.0

    run(SimulatedBackend(factor), {"a": technique(), "b": technique()})
    assert [recipe for recipe, _ in listener.bests] == [_recipe(a=True), _recipe(a=True, b=True)]
    assert [ratio for _, ratio in listener.bests] == pytest.approx([2.0, 1 / 0.3], rel=0.01)


def test_selection_rounds_are_no_part_of_the_proof(run: Any, technique: Any) -> None:
    """Forks that share a lucky parent may mislead the selection. The proof starts processes of its own."""
    backend = SimulatedBackend(choice_factors(a=0.8))
    tuning = run(backend, {"a": technique()})
    cold = [spec for spec in backend.specs if spec.is_cold]
    assert tuning.total.num_rounds == len(cold) / 2
    assert tuning.total.ratio == pytest.approx(1.25, rel=0.01)


def test_the_second_best_is_proved_if_the_whole_recipe_is_refuted(run: Any, technique: Any) -> None:
    """The combination is slower in cold processes."""

    class Cold(SimulatedBackend):
        def __init__(self) -> None:
            super().__init__(self._factor_of)

        def _factor_of(self, recipe: Recipe) -> float:
            names = {choice.technique for choice in recipe.choices}
            if {"a", "b"} <= names:
                return 1.3 if self.specs[-1].is_cold else 0.5
            return 0.7 if "a" in names else 0.8 if "b" in names else 1.0

    tuning = run(Cold(), {"a": technique(), "b": technique()})
    assert tuning.recipe == _recipe(a=True) and tuning.total.ratio == pytest.approx(1 / 0.7, rel=0.01)
    causes = {one.recipe: one.cause for one in tuning.verdicts if one.kind == "total"}
    assert causes.get(_recipe(a=True)) == "proved"


# --- numerics ---------------------------------------------------------------------------------------------------------


def _rounded(spec: TrialSpec, num_steps: int) -> Fingerprint:
    if spec.role == "candidate" and spec.recipe.setting_of("a") is not None:
        return made_fingerprint(num_steps, rounding=1e-7)
    return made_fingerprint_of(spec, num_steps)


def test_controls_run_only_for_recipes_that_are_not_bit_equal(run: Any, technique: Any, listener: Any) -> None:
    run(SimulatedBackend(choice_factors(a=0.5)), {"a": technique("reordered")})
    assert "rounding control" not in listener.entered
    tuning = run(SimulatedBackend(choice_factors(a=0.5), fingerprint=_rounded), {"a": technique("reordered")})
    assert listener.entered.count("rounding control") == 3
    assert "seed control" not in listener.entered, "rounding never dominates this training"
    assert tuning.recipe == _recipe(a=True)


def test_controls_run_once_for_all_recipes_of_a_tuning(run: Any, technique: Any, listener: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.7, b=0.8), fingerprint=_rounded)
    tuning = run(backend, {"a": technique("reordered"), "b": technique("reordered")})
    assert tuning.recipe == _recipe(a=True, b=True)
    assert listener.entered.count("rounding control") == 3


def test_lower_precision_is_compared_with_its_own_rounding(run: Any, technique: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.5), fingerprint=_rounded)
    run(backend, {"a": technique("approximate", settings=("bf16",))})
    controls = {(spec.precision, spec.draw) for spec in backend.specs if spec.role == "rounding"}
    assert controls == {("bf16", draw) for draw in range(4)}


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_technique_that_needs_proof_is_judged_by_a_separate_trial(run: Any, technique: Any, is_sound: bool) -> None:
    """The timed trial draws other random numbers, like another seed. The one that proves it must not."""

    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        if spec.role == "candidate":
            return made_fingerprint(num_steps, seed=2)
        if spec.role == "proof":
            return made_fingerprint(num_steps, rounding=1e-7, gradient_scale=1.0 if is_sound else 0.5)
        return made_fingerprint_of(spec, num_steps)

    backend = SimulatedBackend(choice_factors(c=0.5), fingerprint=seen)
    tuning = run(backend, {"c": technique("reordered", needs_proof=True)})
    assert any(spec.role == "proof" for spec in backend.specs)
    assert bool(tuning.recipe.choices) == is_sound


def test_a_model_that_draws_no_random_numbers_needs_no_trial_to_prove_it(run: Any, technique: Any) -> None:
    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        is_timed = spec.role == "candidate"
        return made_fingerprint(num_steps, rounding=1e-7) if is_timed else made_fingerprint_of(spec, num_steps)

    backend = SimulatedBackend(choice_factors(c=0.5), fingerprint=seen)
    assert run(backend, {"c": technique("reordered", needs_proof=True)}).recipe.choices
    roles = [spec.role for spec in backend.specs]
    assert "proof" not in roles and "rounding" in roles


# --- other programs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_gain_is_kept_beside_bursts_of_load(run: Any, technique: Any, seed: int) -> None:
    backend = SimulatedBackend(choice_factors(a=0.65, b=1.05), load=LoadBursts(seed).num_cores, seed=seed)
    tuning = run(backend, {"a": technique(), "b": technique(), "c": technique()}, seed=seed)
    assert tuning.recipe == _recipe(a=True)
    assert tuning.total.low <= 1 / 0.65 <= tuning.total.high
    assert 0 < tuning.num_discarded < tuning.num_rounds
    assert 0.25 < tuning.foreign_cores <= 2.0 and tuning.waited_s > 0


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_kept_beside_bursts_of_load_if_nothing_helps(run: Any, technique: Any, seed: int) -> None:
    backend = SimulatedBackend(load=LoadBursts(seed).num_cores, seed=seed, lottery=0.03)
    tuning = run(backend, {name: technique() for name in "abc"}, seed=seed)
    assert not tuning.recipe.choices and tuning.total is None


def test_a_machine_that_slows_down_for_good_changes_nothing(run: Any, technique: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.7), pace=lambda now_s: 2.0 if now_s > 60.0 else 1.0)
    tuning = run(backend, {"a": technique(), "b": technique()})
    assert tuning.recipe == _recipe(a=True) and tuning.total.ratio == pytest.approx(1 / 0.7, rel=0.02)


def test_a_machine_that_stays_busy_ends_the_tuning_with_the_best_candidate(run: Any, technique: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.6), load=lambda now_s: 2.0 if now_s > 90.0 else 0.0)
    tuning = run(backend, {"a": technique()})
    assert not tuning.is_complete and not tuning.was_interrupted and not tuning.recipe.choices
    assert tuning.candidate == _recipe(a=True) and tuning.candidate_speed.ratio == pytest.approx(1 / 0.6, rel=0.05)
    assert any("other programs used" in note and "--resume" in note for note in tuning.notes)


def test_a_machine_that_is_busy_from_the_start_is_no_reason_to_crash(run: Any, technique: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.6), load=lambda now_s: 2.0)
    tuning = run(backend, {"a": technique()})
    assert not tuning.is_complete and not tuning.recipe.choices
    assert any("other programs used" in note for note in tuning.notes)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_note_says_that_only_one_trial_fits_in_memory(run: Any, technique: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.5), num_trials=1), {"a": technique()}, budget_s=1000.0)
    assert tuning.recipe == _recipe(a=True)
    assert any("Only one trial fits in memory" in note for note in tuning.notes)


@pytest.mark.parametrize("num_trials", [2, 3])
def test_few_trials_in_memory_are_enough(run: Any, technique: Any, num_trials: int) -> None:
    known = {"a": technique("reordered"), "b": technique(), **{f"u{number}": technique() for number in range(4)}}
    backend = SimulatedBackend(choice_factors(a=0.7, b=0.8), num_trials=num_trials, fingerprint=_rounded)
    tuning = run(backend, known)
    assert tuning.recipe == _recipe(a=True, b=True) and backend.most_at_once <= num_trials


def test_a_base_that_cannot_run_is_an_error_with_a_reason(run: Any, technique: Any) -> None:
    with pytest.raises(RaceError, match="no such file"):
        run(SimulatedBackend(fault=lambda spec, num_steps: "no such file"), {"a": technique()})


def test_after_repeated_failures_of_the_base_the_known_results_are_returned(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    class Dying(SimulatedBackend):
        def __init__(self) -> None:
            super().__init__(choice_factors(slow=2.0, a=0.6), fault=self._why)

        def _why(self, spec: TrialSpec, num_steps: int) -> str:
            return "killed" if spec.role == "base" and self.now_s() > 130.0 else ""

    tuning = run(Dying(), {"slow": technique(), "a": technique()})
    assert not tuning.is_complete and not tuning.was_interrupted
    assert any("ended early" in note and "killed" in note for note in tuning.notes)
    assert verdict_of(tuning, "slow").decision == "rejected" and tuning.candidate == _recipe(a=True)


@pytest.mark.parametrize("num_timings", [1, 40, 120, 180, 220, 300])
def test_an_interrupted_tuning_returns_what_is_known_and_ends_all_trials(
    run: Any, technique: Any, num_timings: int
) -> None:
    class Interrupted(SimulatedBackend):
        def run_block(self, *of_block: Any, **how: Any) -> Any:
            if self.num_timings == num_timings:
                raise KeyboardInterrupt
            return super().run_block(*of_block, **how)

    backend = Interrupted(choice_factors(a=0.6))
    tuning = run(backend, {"a": technique(), "b": technique()})
    assert not tuning.is_complete and tuning.was_interrupted
    assert not backend._present
    assert bool(tuning.candidate.choices or tuning.recipe.choices) is (num_timings >= 180)
    singles = {one.technique for one in tuning.verdicts if one.kind == "single"}
    assert singles == {"a", "b"}, "each has a row or is named"


def test_a_session_without_a_summary_can_be_tuned(run: Any, technique: Any, session: Session) -> None:
    bare = msgspec.structs.replace(session, summary=None)
    tuning = run(SimulatedBackend(choice_factors(a=0.5)), {"a": technique()}, bare)
    assert tuning.recipe == _recipe(a=True) and tuning.ceiling_ms is None


@pytest.mark.parametrize("num_steps", [60, 200])
def test_a_script_that_ends_during_the_race_is_started_again(run: Any, technique: Any, num_steps: int) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.5), num_steps=num_steps), {"a": technique()})
    assert tuning.recipe == _recipe(a=True) and tuning.total.ratio == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("step_s", [1.0, 4.0])
def test_long_steps_are_raced_with_a_few_steps_for_each_arm(run: Any, technique: Any, step_s: float) -> None:
    """All arms get time, and the first rung of each is a few steps."""
    seen = diagnose(made_session(forward_ms=step_s * 400, backward_ms=step_s * 600))
    backend = SimulatedBackend(choice_factors(a=0.7), step_s=step_s)
    tuning = run(backend, {"a": technique(), **{f"u{number}": technique() for number in range(6)}}, seen)
    assert tuning.recipe == _recipe(a=True)
    assert not [one for one in tuning.verdicts if one.cause == "not_raced"]
    assert math.isclose(tuning.total.ratio, 1 / 0.7, rel_tol=0.02)


@pytest.mark.parametrize("budget_s", [60.0, 90.0, 240.0, 600.0])
@pytest.mark.parametrize(("start_s", "step_s"), [(0.3, 0.02), (4.0, 0.5), (12.0, 2.4)])
def test_a_named_budget_holds(run: Any, technique: Any, budget_s: float, start_s: float, step_s: float) -> None:
    """Controls of the numerics check, starts and pairs do not begin if they would end too late."""
    seen = diagnose(made_session(forward_ms=step_s * 400, backward_ms=step_s * 600))
    backend = SimulatedBackend(
        choice_factors(a=0.6, c=0.8),
        step_s=step_s,
        startup_s=lambda recipe: start_s,
        cold_start_s=lambda recipe: 2 * start_s,
        fingerprint=_rounded,
    )
    names = {name: technique("reordered") for name in ("a", "b", "c", "d", "e", "f")}
    tuning = run(backend, names, seen, budget_s=budget_s)
    assert tuning.seconds_spent <= 1.2 * budget_s
    is_enough = budget_s >= 60.0 * start_s
    assert tuning.recipe.setting_of("a") or tuning.candidate.setting_of("a") or not is_enough
