"""Complete tunings on a simulated backend."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import (
    Choice,
    Failure,
    Fingerprint,
    Length,
    Recipe,
    Session,
    TechniqueNote,
    TrialSpec,
)
from slipstream.techniques._core.card import YES, no
from slipstream.testing.made_fingerprints import made_fingerprint, made_fingerprint_of
from slipstream.testing.made_sessions import made_loader, made_session
from slipstream.testing.noise_model import Noise, NoiseModel
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.trials import RaceError


def _recipe(**choices: Any) -> Recipe:
    return Recipe(tuple(Choice(name, setting) for name, setting in choices.items()))


def test_winners_are_kept_together_and_the_rest_is_not(run: Any, technique: Any, verdict_of: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.8, b=0.9, slow=1.5))
    tuning = run(backend, {"a": technique(), "b": technique(), "useless": technique(), "slow": technique()})
    assert tuning.recipe == _recipe(a=True, b=True) and tuning.is_complete
    assert {name: verdict_of(tuning, name).decision for name in ("a", "b", "slow", "useless")} == {
        "a": "kept",
        "b": "kept",
        "slow": "rejected",
        "useless": "rejected",
    }
    assert tuning.total is not None and tuning.total.low <= 1 / 0.72 <= tuning.total.high
    beside = verdict_of(tuning, "b")
    assert beside.recipe == tuning.recipe and beside.speed.ratio == pytest.approx(1 / 0.72, rel=1e-3)
    assert verdict_of(tuning, "a", kind="left_out").speed.ratio == pytest.approx(1.25, rel=1e-3)
    assert verdict_of(tuning, "recipe", kind="total").decision == "kept"
    assert verdict_of(tuning, "nothing", kind="noise").speed == tuning.noise
    assert tuning.seconds_spent < 300


@pytest.mark.parametrize(("factor", "is_kept"), [(0.98, False), (0.97, True)])
def test_a_gain_within_the_difference_between_two_starts_is_not_kept(
    run: Any, technique: Any, verdict_of: Any, factor: float, is_kept: bool
) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=factor)), {"a": technique()})
    total = verdict_of(tuning, "recipe", kind="total")
    assert bool(tuning.recipe.choices) is is_kept and total.decision == ("kept" if is_kept else "unsure")
    assert ("no more than two starts may differ by chance" in total.reason) is not is_kept


def test_every_row_has_its_numbers(run: Any, technique: Any, verdict_of: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.8)), {"a": technique()})
    row = verdict_of(tuning, "a")
    assert row.step_ms == pytest.approx(40.0) and row.samples_per_s == pytest.approx(800.0)
    assert row.batch_size == 32 and row.peak_bytes == 2**30
    assert row.numerics.is_sound and row.recipe == _recipe(a=True)
    assert tuning.base_step_ms == pytest.approx(50.0) and tuning.base_samples_per_s == pytest.approx(640.0)
    assert tuning.base_batch_size == 32 and tuning.base_peak_bytes == 2**30
    assert tuning.ceiling_ms is not None
    assert {record.spec.role for record in tuning.trials} >= {"base", "twin", "candidate"}
    assert all(not record.fingerprint.snapshots for record in tuning.trials), "sketches are not kept"


def test_every_verdict_is_reported_as_soon_as_it_is_known(run: Any, technique: Any, listener: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.8)), {"a": technique(), "b": technique(answer=no("not here"))})
    told = [(one.kind, one.technique) for one in listener.verdicts]
    assert told[0] == ("single", "b")
    assert told == [(one.kind, one.technique) for one in tuning.verdicts if one.kind != "noise"]


def test_a_technique_that_adds_nothing_to_a_better_one_is_dropped(run: Any, technique: Any, verdict_of: Any) -> None:
    def either(recipe: Recipe) -> float:
        return min((0.7 if choice.technique == "a" else 0.8 for choice in recipe.choices), default=1.0)

    tuning = run(
        SimulatedBackend(lambda recipe: either(recipe.without("nothing"))), {"b": technique(), "a": technique()}
    )
    assert tuning.recipe == _recipe(a=True)
    dropped = verdict_of(tuning, "b")
    assert dropped.decision == "rejected"
    assert dropped.recipe == _recipe(a=True, b=True) and dropped.reason == "no faster than a: at most 1.01x"


def test_a_technique_that_others_make_superfluous_is_removed(run: Any, technique: Any, verdict_of: Any) -> None:
    """a is best alone; b and c together do all that a does, and more."""

    def factor(recipe: Recipe) -> float:
        on = {choice.technique for choice in recipe.choices}
        if {"b", "c"} <= on:
            return 0.5
        return 0.7 if "a" in on and not {"b", "c"} & on else {"b": 0.65, "c": 0.66}.get("".join(on & {"b", "c"}), 1.0)

    def best_alone(recipe: Recipe) -> float:
        return 0.6 if recipe == _recipe(a=True) else factor(recipe.without("nothing"))

    def stacked(recipe: Recipe) -> float:
        return 0.55 if recipe == _recipe(a=True, b=True) else best_alone(recipe)

    tuning = run(SimulatedBackend(stacked), {name: technique() for name in "abc"})
    assert tuning.recipe == _recipe(b=True, c=True)
    assert verdict_of(tuning, "a").decision == "rejected"
    assert "costs nothing" in verdict_of(tuning, "a", kind="left_out").reason


def test_conflicting_winners_are_not_combined_and_both_are_named(
    run: Any, technique: Any, verdict_of: Any, listener: Any
) -> None:
    known = {"a": technique(claims=("the call",)), "b": technique(claims=("the call",))}
    tuning = run(SimulatedBackend(choice_factors(a=0.8, b=0.7)), known)
    assert tuning.recipe == _recipe(b=True)
    assert "a and b both claim the call" in verdict_of(tuning, "a").reason
    assert not any("+" in trial for trial in listener.entered)


def test_an_undecided_rival_is_not_reported_to_gain_less(run: Any, technique: Any, verdict_of: Any) -> None:
    """One of two techniques with the same gain leads first, which ends the race of the other."""
    known = {"a": technique(claims=("the call",)), "b": technique(claims=("the call",)), "c": technique()}
    tuning = run(SimulatedBackend(choice_factors(a=0.5, b=0.5)), known)
    (kept,) = tuning.recipe.choices
    other = verdict_of(tuning, "b" if kept.technique == "a" else "a")
    assert other.decision == "unsure"
    assert other.reason == "a and b both claim the call; the other one led first, and this one was not decided"


@pytest.mark.parametrize("last", [0.4, 0.6])
def test_a_candidate_that_was_not_raced_while_another_led_races_in_its_place(
    run: Any, technique: Any, verdict_of: Any, listener: Any, last: float
) -> None:
    """Both claim the same thing, so the later one is never raced on top of the first."""
    known = {"first": technique(claims=("the call",)), **{name: technique() for name in "abcdefg"}}
    known["last"] = technique(claims=("the call",))
    tuning = run(SimulatedBackend(choice_factors(first=0.5, last=last)), known)
    better, worse = ("last", "first") if last < 0.5 else ("first", "last")
    assert tuning.recipe == _recipe(**{better: True}) and verdict_of(tuning, worse).decision == "rejected"
    assert "last" in listener.entered and not any("first + last" in trial for trial in listener.entered)
    if better == "last":
        assert verdict_of(tuning, "first").reason == "first and last both claim the call; the other one gains more"


def test_a_control_continues_after_the_ground_has_lost(run: Any, technique: Any, listener: Any) -> None:
    run(SimulatedBackend(choice_factors(g=1.05)), {"a": technique(), "g": technique(is_ground=True)})
    assert listener.entered.count("nothing") == 1


def test_modes_are_tried_after_everything_else_is_proved(run: Any, technique: Any, listener: Any) -> None:
    known = {"mode": technique(settings=("plain", "best")), "a": technique()}
    run(SimulatedBackend(choice_factors(mode=0.7, a=0.7)), known)
    left_out = [at for at, trial in enumerate(listener.entered) if trial == "a"]
    assert left_out and listener.entered.index("a + mode=best") > max(left_out)


def test_controls_do_not_run_for_a_recipe_that_lost_the_final_race(run: Any, technique: Any, verdict_of: Any) -> None:
    """It led by chance: another process with the same recipe gains nothing."""
    num_starts = 0

    def factor(recipe: Recipe) -> float:
        nonlocal num_starts
        num_starts += recipe == _recipe(a=True)
        return 0.8 if recipe == _recipe(a=True) and num_starts <= 2 else 1.0  # enter() calls this twice

    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        is_base = spec.role != "candidate"
        return made_fingerprint_of(spec, num_steps) if is_base else made_fingerprint(num_steps, rounding=1.1e-7)

    backend = SimulatedBackend(factor, fingerprint=seen)
    tuning = run(backend, {"a": technique("reordered")})
    assert not tuning.recipe.choices and verdict_of(tuning, "recipe", kind="total").decision in ("rejected", "unsure")
    assert not {"rounding", "seed"} & {spec.role for spec in backend.specs}


def test_a_candidate_that_was_not_raced_comes_before_one_that_did_not_seem_to_gain(
    run: Any, technique: Any, listener: Any
) -> None:
    run(SimulatedBackend(choice_factors(lead=0.5)), {name: technique() for name in ("lead", *"abcdefgh")})
    assert "a" in listener.entered and "h" not in listener.entered
    assert listener.entered.index("lead + h") < listener.entered.index("lead + a")


def test_settings_are_found_by_hill_climbing(run: Any, technique: Any, verdict_of: Any, listener: Any) -> None:
    factors = {1: 0.9, 2: 0.7, 4: 0.6, 8: 0.65, 16: 0.5}

    def factor(recipe: Recipe) -> float:
        setting = recipe.setting_of("w")
        return 1.0 if setting is None else factors[int(setting)]

    tuning = run(SimulatedBackend(factor), {"w": technique(settings=(2, 1, 4, 8, 16))})
    assert tuning.recipe == _recipe(w=4)
    assert verdict_of(tuning, "w", 8).reason == "slower than w=4"
    best = verdict_of(tuning, "w", 2)
    assert best.decision == "rejected" and best.reason.startswith("w=4 is faster still, 1.67x")
    assert "w=16" not in listener.entered and "w=1" not in listener.entered


def test_a_setting_that_is_too_much_leads_to_the_next_smaller(run: Any, technique: Any) -> None:
    factors = {1: 0.6, 2: 0.8, 4: 0.9}
    backend = SimulatedBackend(lambda recipe: factors.get(int(recipe.setting_of("w") or 0), 1.0))
    assert run(backend, {"w": technique(settings=(2, 1, 4))}).recipe == _recipe(w=1)


def test_named_settings_are_climbed_down_the_list(run: Any, technique: Any, listener: Any) -> None:
    factors = {"before": 0.1, "default": 0.8, "worse": 0.9, "best": 0.5}
    backend = SimulatedBackend(lambda recipe: factors.get(str(recipe.setting_of("c")), 1.0))
    known = {"c": technique(settings=("default", "worse", "best"))}
    assert run(backend, known).recipe == _recipe(c="best"), "a setting that lost does not end the climb"
    assert listener.entered.index("c=worse") < listener.entered.index("c=best")


def test_a_candidate_with_a_loss_before_comes_last_in_the_next_pass(run: Any, technique: Any, listener: Any) -> None:
    """Both candidates remain open. One of them lost by a third on the unchanged script."""
    known = {"worse": technique(), "better": technique(), "large": technique()}
    run(SimulatedBackend(choice_factors(worse=1.5, better=0.97, large=0.5)), known)
    later = [name for name in listener.entered if name.startswith("large + ")]
    assert later[:2] == ["large + better", "large + worse"]


def test_named_settings_are_tried_after_every_technique(run: Any, technique: Any, listener: Any) -> None:
    def factor(recipe: Recipe) -> float:
        mode = {"default": 0.7, "best": 0.5}.get(str(recipe.setting_of("c")), 1.0)
        return mode * (0.8 if recipe.setting_of("b") else 1.0)

    tuning = run(SimulatedBackend(factor), {"c": technique(settings=("default", "best")), "b": technique()})
    assert set(tuning.recipe.choices) == set(_recipe(b=True, c="best").choices)
    assert listener.entered.index("c=default + b") < listener.entered.index("b + c=best")
    assert "c=best" not in listener.entered[: listener.entered.index("b + c=best")]


@pytest.mark.parametrize("first", [1.2, 5.0])
def test_one_more_setting_is_tried_if_the_first_one_loses(
    run: Any, technique: Any, verdict_of: Any, listener: Any, first: float
) -> None:
    factors = {8: first, 2: 0.7, 1: 0.1}
    backend = SimulatedBackend(lambda recipe: factors.get(int(recipe.setting_of("w") or 0), 1.0))
    tuning = run(backend, {"w": technique(settings=(8, 2)), "u": technique(settings=(1, 2, 3))})
    assert tuning.recipe == _recipe(w=2)
    assert verdict_of(tuning, "w", 8).decision == "rejected" and verdict_of(tuning, "w", 2).decision == "kept"
    assert "u=2" in listener.entered and "u=3" not in listener.entered, "one more setting, not all"


def test_an_unsound_technique_is_rejected_however_fast(run: Any, technique: Any, verdict_of: Any) -> None:
    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        wrong = spec.recipe.setting_of("a") is not None
        return made_fingerprint(num_steps, loss_shift=0.5) if wrong else made_fingerprint_of(spec, num_steps)

    tuning = run(SimulatedBackend(choice_factors(a=0.5), fingerprint=seen), {"a": technique()})
    assert tuning.recipe == Recipe()
    assert verdict_of(tuning, "a").decision == "rejected"
    assert verdict_of(tuning, "a").reason.startswith("faster, but not sound")


def test_a_technique_without_recorded_losses_is_unsure_and_never_kept(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    backend = SimulatedBackend(choice_factors(a=0.5), fingerprint=lambda spec, num_steps: Fingerprint())
    tuning = run(backend, {"a": technique()})
    assert tuning.recipe == Recipe() and verdict_of(tuning, "a").decision == "unsure"
    assert "could not be checked" in verdict_of(tuning, "a").reason


def _rounded(spec: TrialSpec, num_steps: int) -> Fingerprint:
    if spec.role == "candidate" and spec.recipe.setting_of("a") is not None:
        return made_fingerprint(num_steps, rounding=1e-7)
    return made_fingerprint_of(spec, num_steps)


def test_controls_run_only_for_recipes_that_are_not_bit_equal(run: Any, technique: Any, listener: Any) -> None:
    run(SimulatedBackend(choice_factors(a=0.5)), {"a": technique("reordered")})
    assert "rounding control" not in listener.entered
    tuning = run(SimulatedBackend(choice_factors(a=0.5), fingerprint=_rounded), {"a": technique("reordered")})
    assert listener.entered.count("rounding control") == listener.entered.count("seed control") == 1
    assert tuning.recipe == _recipe(a=True)


def test_controls_run_only_for_the_whole_recipe_if_a_leader_is_sound_without_them(
    run: Any, technique: Any, listener: Any
) -> None:
    backend = SimulatedBackend(choice_factors(a=0.7, b=0.8), fingerprint=_rounded)
    tuning = run(backend, {"a": technique("reordered"), "b": technique("reordered")})
    assert tuning.recipe == _recipe(a=True, b=True)
    assert listener.entered.index("a + b") < listener.entered.index("rounding control")


def test_lower_precision_is_compared_with_a_coarse_control_too(run: Any, technique: Any, listener: Any) -> None:
    run(SimulatedBackend(choice_factors(a=0.5), fingerprint=_rounded), {"a": technique("approximate")})
    assert "coarse control" in listener.entered


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_technique_that_needs_proof_is_judged_by_a_separate_trial(run: Any, technique: Any, is_sound: bool) -> None:
    """The timed trial draws other random numbers, like another seed. The proof must not."""

    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        if spec.role == "candidate":
            return made_fingerprint(num_steps, seed=2)
        if spec.role == "proof":
            return made_fingerprint(num_steps, rounding=1e-7, gradient_scale=1.0 if is_sound else 0.5)
        return made_fingerprint_of(spec, num_steps)

    backend = SimulatedBackend(choice_factors(c=0.5), fingerprint=seen)
    tuning = run(backend, {"c": technique("reordered", needs_proof=True)})
    assert sum(spec.role == "proof" for spec in backend.specs) == 1
    assert bool(tuning.recipe.choices) == is_sound


def test_a_model_that_draws_no_random_numbers_needs_no_trial_to_prove_it(run: Any, technique: Any) -> None:
    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        is_timed = spec.role == "candidate"
        return made_fingerprint(num_steps, rounding=1e-7) if is_timed else made_fingerprint_of(spec, num_steps)

    backend = SimulatedBackend(choice_factors(c=0.5), fingerprint=seen)
    tuning = run(backend, {"c": technique("reordered", needs_proof=True)})
    assert tuning.recipe.choices
    roles = [spec.role for spec in backend.specs]
    assert "proof" not in roles and "rounding" in roles


def test_an_opt_in_technique_is_timed_and_kept_only_on_request(run: Any, technique: Any, verdict_of: Any) -> None:
    known = {"off": technique(is_opt_in=True)}
    tuning = run(SimulatedBackend(choice_factors(off=0.7)), known)
    verdict = verdict_of(tuning, "off")
    assert tuning.recipe == Recipe() and verdict.decision == "rejected"
    assert "1.43x" in verdict.reason and "--only off" in verdict.reason
    assert run(SimulatedBackend(choice_factors(off=0.7)), known, only=("off",)).recipe == _recipe(off=True)


def test_a_technique_that_saves_memory_is_raced_only_if_named_and_its_cost_is_reported(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    known = {"lean": technique(purpose="memory", settings=("all",)), "other": technique()}

    def backend() -> SimulatedBackend:
        return SimulatedBackend(choice_factors(lean=1.25), peak_bytes=lambda recipe: 10**9 // (1 + len(recipe.choices)))

    refused = verdict_of(run(backend(), known), "lean")
    assert refused.decision == "not_applicable" and "--only lean tries it" in refused.reason
    verdict = verdict_of(run(backend(), known, only=("lean",)), "lean", "all")
    assert verdict.decision == "rejected" and verdict.reason.startswith("costs time, 0.80x")
    assert "for 500 MB at the peak against 1 GB" in verdict.reason
    assert verdict.reason.endswith('write lean = "all" under [recipe]')


def test_a_much_slower_technique_costs_one_start_and_its_slowdown_is_reported(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    backend = SimulatedBackend(choice_factors(bf16=12.0))
    verdict = verdict_of(run(backend, {"bf16": technique("approximate")}), "bf16")
    assert verdict.decision == "rejected" and verdict.reason == "much slower: 12 times the base's step"
    assert backend.now_s() < 60


def test_a_trial_that_fails_is_a_record(run: Any, technique: Any, verdict_of: Any) -> None:
    def fault(spec: TrialSpec, num_steps: int) -> str:
        return "RuntimeError: no kernel" if spec.recipe.setting_of("a") else ""

    tuning = run(SimulatedBackend(choice_factors(b=0.5), fault=fault), {"a": technique(), "b": technique()})
    assert verdict_of(tuning, "a").decision == "failed"
    assert verdict_of(tuning, "a").reason == "RuntimeError: no kernel"
    assert tuning.recipe == _recipe(b=True)


def test_compilation_that_never_pays_off_is_not_kept(run: Any, technique: Any, verdict_of: Any) -> None:
    known = {"c": technique()}

    def backend() -> SimulatedBackend:
        return SimulatedBackend(choice_factors(c=0.8), startup_s=lambda recipe: 24.0 if recipe.setting_of("c") else 4.0)

    short = diagnose(made_session(length=Length(num_steps=1500)))
    verdict = verdict_of(run(backend(), known, short), "c")
    assert (
        verdict.decision == "rejected" and verdict.reason == "pays off only after 2,000 steps; this training has 1,500"
    )
    verdict = verdict_of(run(backend(), known, diagnose(made_session(length=Length(num_steps=10_000)))), "c")
    assert verdict.decision == "kept" and verdict.payback_steps == 2000 and verdict.one_off_s == 20.0


def test_the_whole_training_before_and_after(run: Any, technique: Any) -> None:
    seen = diagnose(made_session(length=Length(num_steps=10_000)))
    assert seen.summary is not None and seen.summary.seconds_left is not None
    slow_start = SimulatedBackend(choice_factors(a=0.5), step_s=0.032, startup_s=lambda recipe: 4.0)
    tuning = run(slow_start, {"a": technique()}, seen)
    assert tuning.seconds_before == 4 + seen.summary.seconds_left, "start-up included"
    assert tuning.seconds_after == pytest.approx(4 + seen.summary.seconds_left / 2, rel=0.01), "it gets no faster"


def test_no_more_of_the_whole_training_is_saved_than_the_ratio_allows(run: Any, technique: Any) -> None:
    seen = diagnose(made_session(length=Length(num_steps=10_000)))
    assert seen.summary is not None
    slow_median = msgspec.structs.replace(seen.summary, step_ms=1.5 * seen.summary.step_ms)
    seen = msgspec.structs.replace(seen, summary=slow_median)
    slow_start = SimulatedBackend(choice_factors(a=0.5), step_s=0.048, startup_s=lambda recipe: 4.0)
    tuning = run(slow_start, {"a": technique()}, seen)
    assert tuning.seconds_before == 4 + slow_median.seconds_left
    assert tuning.seconds_after == pytest.approx(4 + slow_median.seconds_left / tuning.total.ratio, rel=0.01)


def test_a_latecomer_is_raced_together_with_the_recipe_that_it_needs(run: Any, technique: Any, verdict_of: Any) -> None:
    late = technique(answer=no("there are no workers"))
    late.applies_with = lambda observation, recipe: YES if recipe.setting_of("w") else no("still none")
    tuning = run(SimulatedBackend(choice_factors(w=0.5, late=0.8)), {"w": technique(), "late": late})
    assert tuning.recipe == _recipe(w=True, late=True)
    assert verdict_of(tuning, "late").decision == "kept"


def test_a_short_budget_keeps_time_for_the_whole_recipe(run: Any, technique: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.6, b=0.8, c=0.9), num_trials=3)
    known = {"a": technique(), **{f"u{number}": technique() for number in range(8)}, "b": technique(), "c": technique()}
    tuning = run(backend, known, budget_s=90.0)
    assert tuning.recipe.setting_of("a") is True and tuning.total is not None
    assert tuning.seconds_spent < 90 * 1.1
    untried = [one for one in tuning.verdicts if one.decision == "unsure" and one.speed is None]
    assert untried and all("--budget" in one.reason for one in untried)


def test_the_whole_recipe_is_raced_even_if_the_time_is_over(run: Any, technique: Any) -> None:
    """Starts take so long that no time is left. The final race still gets the rounds that it needs for a result."""
    slow_start = SimulatedBackend(choice_factors(a=0.5), startup_s=lambda recipe: 18.0)
    tuning = run(slow_start, {"a": technique()}, budget_s=60.0)
    assert tuning.recipe == _recipe(a=True)
    assert tuning.total is not None and tuning.total.low > 1.9
    assert 60 < tuning.seconds_spent < 60 * 1.5


def test_the_final_race_always_has_a_control(run: Any, technique: Any, listener: Any) -> None:
    """However long the start of the control takes."""
    run(SimulatedBackend(choice_factors(a=0.5), startup_s=lambda recipe: 25.0), {"a": technique()}, budget_s=60.0)
    assert "nothing" in listener.entered


def test_no_candidate_no_race(run: Any, technique: Any) -> None:
    backend = SimulatedBackend()
    tuning = run(backend, {"a": technique(answer=no("not here"))})
    assert backend.specs == [] and tuning.is_complete and tuning.total is None
    assert tuning.base_step_ms > 0 and tuning.noise_note == ""


def test_a_noisy_machine_is_reported_and_small_gains_are_not_kept(run: Any, technique: Any) -> None:
    def factor(recipe: Recipe) -> float:
        return {"nothing": 0.92, "a": 0.95, "b": 0.5}.get(recipe.choices[0].technique if recipe.choices else "", 1.0)

    tuning = run(SimulatedBackend(factor), {"a": technique(), "b": technique()})
    assert "the A/A control, which changes nothing, seems 9% faster" in tuning.noise_note
    assert tuning.recipe == _recipe(b=True)


def test_a_process_that_is_fast_by_chance_does_not_make_a_recipe(run: Any, technique: Any, verdict_of: Any) -> None:
    """The whole recipe is raced in a new trial, which does not have the chance gain of the first one."""
    num_entered = 0

    def factor(recipe: Recipe) -> float:
        nonlocal num_entered
        num_entered += recipe == _recipe(a=True)
        return 0.9 if recipe == _recipe(a=True) and num_entered < 3 else 1.0

    tuning = run(SimulatedBackend(factor), {"a": technique()})
    assert tuning.recipe == Recipe() and tuning.total is None
    assert verdict_of(tuning, "a").decision in ("rejected", "unsure")
    assert "won its own race" in verdict_of(tuning, "a").reason


def test_a_note_says_that_only_one_trial_fits_in_memory(run: Any, technique: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.5), num_trials=1), {"a": technique()}, budget_s=1000.0)
    assert tuning.recipe == _recipe(a=True)
    assert any("Only one trial fits in memory" in note for note in tuning.notes)


def test_a_base_that_cannot_run_is_an_error_with_a_reason(run: Any, technique: Any) -> None:
    with pytest.raises(RaceError, match="no such file"):
        run(SimulatedBackend(fault=lambda spec, num_steps: "no such file"), {"a": technique()})


def test_after_repeated_failures_of_the_base_the_known_results_are_returned(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    is_dead = False

    def fault(spec: TrialSpec, num_steps: int) -> str:
        nonlocal is_dead
        is_dead = is_dead or num_steps > 120
        return "killed" if is_dead and spec.role == "base" else ""

    known = {"slow": technique(), **{f"u{number}": technique() for number in range(6)}}
    tuning = run(SimulatedBackend(choice_factors(slow=2.0), num_trials=2, fault=fault), known)
    assert not tuning.is_complete and not tuning.was_interrupted
    assert any("ended early" in note and "killed" in note for note in tuning.notes)
    assert verdict_of(tuning, "slow").decision == "rejected"


def test_an_interrupted_tuning_returns_what_is_known_and_ends_all_trials(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    class Interrupted(SimulatedBackend):
        def run_block(self, trial: int, round: int, num_steps: int, lead_in: int) -> Any:
            if self.num_timings == 60:
                raise KeyboardInterrupt
            return super().run_block(trial, round, num_steps, lead_in)

    backend = Interrupted(choice_factors(a=2.0), num_trials=2)
    tuning = run(backend, {"a": technique(), **{f"u{number}": technique() for number in range(6)}})
    assert not tuning.is_complete and tuning.was_interrupted
    assert verdict_of(tuning, "a").decision == "rejected"
    assert not backend._present


@pytest.mark.parametrize("seed", range(4))
def test_in_strong_noise_only_the_real_gain_is_found(run: Any, technique: Any, seed: int) -> None:
    backend = SimulatedBackend(
        choice_factors(g=1 / 1.1), noise=Noise(random.Random(seed), noise_model=NoiseModel()), seed=seed
    )
    known = {**{f"u{number}": technique() for number in range(5)}, "g": technique()}
    assert run(backend, known, seed=seed).recipe == _recipe(g=True)


def test_a_session_without_a_summary_can_be_tuned(run: Any, technique: Any, session: Session) -> None:
    bare = msgspec.structs.replace(session, summary=None)
    tuning = run(SimulatedBackend(choice_factors(a=0.5)), {"a": technique()}, bare)
    assert tuning.recipe == _recipe(a=True) and tuning.ceiling_ms is None


def test_a_whole_recipe_whose_numerics_could_not_be_checked_is_not_kept(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    trials: set[int] = set()

    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        if spec.recipe == _recipe(a=True):
            trials.add(spec.ident)
        return Fingerprint() if len(trials) > 1 and spec.ident == max(trials) else made_fingerprint_of(spec, num_steps)

    tuning = run(SimulatedBackend(choice_factors(a=0.5), fingerprint=seen), {"a": technique()})
    assert tuning.recipe == Recipe() and verdict_of(tuning, "recipe", kind="total").decision == "unsure"
    assert "could not be checked" in verdict_of(tuning, "a").reason


def test_a_tuning_resumed_before_its_final_race_runs_the_base_before_the_proof(
    run: Any, technique: Any, verdict_of: Any, tmp_path: Any
) -> None:
    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        if spec.role == "candidate" and spec.recipe.setting_of("a"):
            return made_fingerprint(num_steps, seed=2)
        is_other = spec.role in ("candidate", "proof")
        return made_fingerprint(num_steps, rounding=1e-7) if is_other else made_fingerprint_of(spec, num_steps)

    class Broken(SimulatedBackend):
        def run_block(self, trial: int, round: int, num_steps: int, lead_in: int) -> Any:
            if journal.exists() and b'"type":"recipe"' in journal.read_bytes():
                raise KeyboardInterrupt
            return super().run_block(trial, round, num_steps, lead_in)

    journal = tmp_path / "journal"
    known = {"a": technique("reordered", needs_proof=True), "b": technique("reordered")}
    factors = choice_factors(a=0.5, b=0.7)
    assert run(Broken(factors, fingerprint=seen), known, journal=str(journal)).was_interrupted
    backend = SimulatedBackend(factors, fingerprint=seen)
    tuning = run(backend, known, journal=str(journal))
    assert tuning.recipe == _recipe(a=True, b=True) and tuning.is_complete
    assert verdict_of(tuning, "recipe", kind="total").numerics.is_sound is True
    roles = [spec.role for spec in backend.specs]
    assert roles.index("base") < roles.index("proof") and "rounding" in roles


def test_a_technique_that_wins_only_together_with_another_is_found(run: Any, technique: Any, verdict_of: Any) -> None:
    def factor(recipe: Recipe) -> float:
        workers, threads = recipe.setting_of("w"), recipe.setting_of("t")
        return (0.6 if threads else 0.8) if workers else (1.1 if threads else 1.0)

    threads = technique()
    threads.applies_with = lambda observation, recipe: YES if recipe.setting_of("w") else no("no workers")
    tuning = run(SimulatedBackend(factor), {"t": threads, "w": technique()})
    assert tuning.recipe == _recipe(w=True, t=True)
    assert verdict_of(tuning, "t").decision == "kept"


def test_a_technique_for_a_cause_that_the_recipe_addresses_comes_later(run: Any, technique: Any, listener: Any) -> None:
    session = diagnose(made_session(input_ms=30.0, loader=made_loader(num_workers=0)))
    causes = tuple(finding.cause for finding in session.findings)
    assert causes
    techniques = {"a": technique(causes=causes), "same": technique(causes=causes), "other": technique()}
    run(SimulatedBackend(choice_factors(a=0.6)), techniques, seen=session)
    assert listener.entered.index("a + other") < listener.entered.index("a + same")


@pytest.mark.parametrize("counted", [32, 0])  # samples counted by the trials; 0: the script has no loader
def test_the_numbers_of_a_row_are_consistent(run: Any, technique: Any, counted: int) -> None:
    noise = Noise(random.Random(3), noise_model=NoiseModel())
    backend = SimulatedBackend(choice_factors(a=0.8, b=1.1), noise=noise, batch_size=counted)
    tuning = run(backend, {"a": technique(), "b": technique()})
    assert tuning.base_samples_per_s * tuning.base_step_ms == pytest.approx(32_000)
    rows = [one for one in tuning.verdicts if one.step_ms is not None]
    assert {row.kind for row in rows} >= {"single", "total"}
    for row in rows:
        assert row.step_ms * row.speed.ratio == pytest.approx(tuning.base_step_ms)
        assert row.samples_per_s == pytest.approx(tuning.base_samples_per_s * row.speed.ratio)


def test_a_tuning_interrupted_during_single_races_returns_the_best_so_far(run: Any, technique: Any) -> None:
    class Interrupted(SimulatedBackend):
        def run_block(self, trial: int, round: int, num_steps: int, lead_in: int) -> Any:
            if self.num_timings == 24:
                raise KeyboardInterrupt
            return super().run_block(trial, round, num_steps, lead_in)

    tuning = run(Interrupted(choice_factors(a=0.5), num_trials=2), {"a": technique(), "b": technique()})
    assert tuning.was_interrupted and tuning.recipe == _recipe(a=True)


def test_a_setting_whose_anchor_failed_is_unsure_and_names_the_anchor(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    is_challenged = False

    def fault(spec: TrialSpec, num_steps: int) -> str:
        nonlocal is_challenged
        is_challenged = is_challenged or spec.recipe == _recipe(w=4)
        return "killed" if is_challenged and spec.recipe == _recipe(w=2) else ""

    tuning = run(SimulatedBackend(choice_factors(w=0.5), fault=fault), {"w": technique(settings=(2, 4))})
    verdict = verdict_of(tuning, "w", 4)
    assert verdict.decision == "unsure" and "w=2 failed during the race: killed" in verdict.reason


def test_a_technique_that_lost_alone_is_raced_again_on_top_of_a_large_gain(
    run: Any, technique: Any, listener: Any
) -> None:
    """Workers gain nothing in a step that computes. Once it computes less, it waits for batches."""

    def factor(recipe: Recipe) -> float:
        faster, workers = recipe.setting_of("faster"), recipe.setting_of("workers")
        return (0.3 if workers else 0.5) if faster else (1.02 if workers else 1.0)

    known = {"workers": technique(), "faster": technique()}
    tuning = run(SimulatedBackend(factor), known)
    assert tuning.recipe == _recipe(faster=True, workers=True)
    told = [one.decision for one in listener.verdicts if one.kind == "single" and one.technique == "workers"]
    assert told[-1] == "kept" and set(told[:-1]) <= {"unsure", "rejected"}
    singles = [one.choice for one in tuning.verdicts if one.kind == "single"]
    assert len(singles) == len(set(singles)), "the first verdict is replaced"
    assert tuning.seconds_spent < 300 * 1.05


def test_the_ground_is_raced_first_and_the_others_on_top_of_it(
    run: Any, technique: Any, verdict_of: Any, listener: Any
) -> None:
    known = {"a": technique(), "g": technique(is_ground=True), "slow": technique()}
    tuning = run(SimulatedBackend(choice_factors(g=0.6, a=0.8, slow=5.0)), known)
    assert tuning.recipe == _recipe(g=True, a=True)
    order = [listener.entered.index(trial) for trial in ("g", "g + a", "a")]
    assert order == sorted(order), "without g only in the ablation"
    assert verdict_of(tuning, "a").speed.ratio == pytest.approx(1 / 0.48, rel=0.02), "against the unchanged script"
    assert verdict_of(tuning, "slow").decision == "rejected"
    assert any("g comes first" in note for note in tuning.notes)


def test_others_are_not_raced_on_top_of_ground_that_gains_nothing(run: Any, technique: Any, listener: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.8)), {"a": technique(), "g": technique(is_ground=True)})
    assert tuning.recipe == _recipe(a=True) and "a" in listener.entered


def test_the_ceiling_is_scaled_if_the_machines_speed_has_changed(run: Any, technique: Any, session: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.5), step_s=0.013), {"a": technique()})
    best_ms, checked_ms = session.summary.ceilings.best_ms(), session.summary.step_ms
    assert tuning.ceiling_ms / tuning.base_step_ms == pytest.approx(best_ms / checked_ms)


def test_a_sufficient_budget_is_suggested_if_steps_are_too_long(run: Any, technique: Any) -> None:
    def slow() -> SimulatedBackend:
        return SimulatedBackend(choice_factors(a=0.5), step_s=6.0, startup_s=lambda recipe: 40.0)

    seen = diagnose(made_session(forward_ms=2000.0, backward_ms=4000.0))
    tuning = run(slow(), {"a": technique(), "b": technique()}, seen, budget_s=60.0)
    told = next(note for note in tuning.notes if "no technique was raced" in note)
    minutes = int(told.split("--budget ")[1].split("m")[0])
    enough = run(slow(), {"a": technique(), "b": technique()}, seen, budget_s=60.0 * minutes)
    assert enough.recipe == _recipe(a=True) and not any("no technique was raced" in note for note in enough.notes)


def test_the_missing_gain_of_the_first_epoch_is_a_one_off_cost(run: Any, technique: Any, verdict_of: Any) -> None:
    """The cache is filled before the race. In a training the first epoch fills it, without a gain."""
    seen = diagnose(made_session(length=Length(num_epochs=2), loader=made_loader(num_batches=400)))
    tuning = run(SimulatedBackend(choice_factors(a=0.5)), {"a": technique(is_later=True)}, seen)
    assert tuning.recipe == _recipe(a=True)
    assert verdict_of(tuning, "a").payback_steps == 400
    assert tuning.seconds_before is not None and tuning.seconds_after is not None
    saved_s = tuning.seconds_before - tuning.seconds_after
    assert saved_s < 0.3 * tuning.seconds_before, "half of half, not half"


def _with_late_cure(technique: Any) -> Any:
    """A technique that applies only after trials have shown that steps get longer."""
    cure = technique()
    cure.applies = lambda observation: YES if observation.is_slowing else no("there are none")
    cure.applies_with = lambda observation, recipe: cure.applies(observation)
    return cure


@pytest.mark.parametrize("helps", [True, False])
def test_a_technique_against_growing_steps_is_raced_if_steps_grow(
    run: Any, technique: Any, verdict_of: Any, helps: bool
) -> None:
    def ageing(recipe: Recipe, num_steps: int) -> float:
        is_cured = helps and recipe.setting_of("cure") is not None
        return 1.0 if is_cured else 1.0 + num_steps / 50

    known = {"a": technique(), "cure": _with_late_cure(technique), "useless": technique()}
    tuning = run(SimulatedBackend(choice_factors(a=0.8), ageing=ageing), known)
    assert tuning.recipe == (_recipe(a=True, cure=True) if helps else _recipe(a=True))
    assert verdict_of(tuning, "cure").decision == ("kept" if helps else "rejected")
    assert any("The gain changes during the training" in note for note in tuning.notes) is helps


def test_a_technique_against_growing_steps_does_not_apply_if_steps_stay_the_same(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.8)), {"a": technique(), "cure": _with_late_cure(technique)})
    assert verdict_of(tuning, "cure").decision == "not_applicable"
    assert not any("changes" in note for note in tuning.notes)


def test_a_technique_against_growing_steps_is_raced_even_if_nothing_else_gains(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    def ageing(recipe: Recipe, num_steps: int) -> float:
        return 1.0 if recipe.setting_of("cure") is not None else 1.0 + num_steps / 50

    known = {"useless": technique(), "ground": technique(is_ground=True), "cure": _with_late_cure(technique)}
    tuning = run(SimulatedBackend(choice_factors(useless=1.02, ground=1.05), ageing=ageing), known)
    assert tuning.recipe == _recipe(cure=True)


def test_a_technique_that_declines_is_not_tried_again(run: Any, technique: Any, verdict_of: Any) -> None:
    class Declining(SimulatedBackend):
        def record(self, trial: int) -> Any:
            record = super().record(trial)
            mine = [one for one in record.changes if one.technique == "cure"]
            return (
                msgspec.structs.replace(record, changes=[], declined=[TechniqueNote("cure", "cannot")])
                if mine
                else record
            )

    backend = Declining(choice_factors(useless=1.02), ageing=lambda recipe, num_steps: 1.0 + num_steps / 20)
    tuning = run(backend, {"useless": technique(), "cure": _with_late_cure(technique)})
    assert verdict_of(tuning, "cure").decision == "not_applicable"
    assert sum(spec.recipe == _recipe(cure=True) for spec in backend.specs) == 1


def test_a_recipe_is_compared_with_the_base_at_equal_steps(run: Any, technique: Any) -> None:
    """If both slow down alike, the ratio is the true one, however much longer the recipe has run."""
    backend = SimulatedBackend(
        choice_factors(a=0.8, b=0.8, c=0.8), ageing=lambda recipe, num_steps: 1.0 + num_steps / 100
    )
    tuning = run(backend, {name: technique() for name in "abc"})
    assert tuning.recipe == _recipe(a=True, b=True, c=True)
    assert tuning.total.ratio == pytest.approx(1 / 0.8**3, rel=0.01)
    assert not any("changes" in note for note in tuning.notes)


class Burst(SimulatedBackend):
    """Other programs use the cores only while the new trial of a recipe that has raced before starts."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, load=lambda now_s: 8.0 if self.is_loaded else 1.0, **how)
        self.is_loaded = False

    def is_start_of_last_race(self, spec: TrialSpec) -> bool:
        return spec.role == "candidate" and any(one.recipe == spec.recipe for one in self.specs)

    def enter(self, spec: TrialSpec) -> Failure | None:
        self.is_loaded = self.is_start_of_last_race(spec)
        failure = super().enter(spec)
        self.is_loaded = False
        return failure


def test_a_burst_of_load_at_the_start_of_the_final_race_loses_nothing(
    run: Any, technique: Any, verdict_of: Any, listener: Any
) -> None:
    tuning = run(Burst(choice_factors(a=0.6)), {"a": technique()})
    assert listener.entered.count("a") > 1, "the burst has hit a start"
    assert verdict_of(tuning, "a").decision == "kept"
    assert verdict_of(tuning, "recipe", kind="total").decision == "kept"
    assert tuning.recipe == Recipe((Choice("a"),))
    assert tuning.total is not None and tuning.total.ratio == pytest.approx(1 / 0.6, rel=0.01)


class SlowToStart(Burst):
    """From the given start of the final race on, the recipe's trials are refused because of their first steps."""

    num_before = 0

    def enter(self, spec: TrialSpec) -> Failure | None:
        num_started = sum(one.recipe == spec.recipe for one in self.specs) - 1
        is_late = self.is_start_of_last_race(spec) and num_started >= self.num_before
        failure = SimulatedBackend.enter(self, spec)
        if is_late and not failure:
            self.leave(spec.ident)
            failure = Failure("743.9 ms a step instead of 203.1 ms: 4x slower", "too_slow")
        return failure


@pytest.mark.parametrize("num_before", [0, 1])
def test_a_slow_start_does_not_discard_what_was_measured(
    run: Any, technique: Any, verdict_of: Any, num_before: int
) -> None:
    """It discards neither the race that proved the recipe, nor the first half of the final race."""
    backend = SlowToStart(choice_factors(a=0.93))
    backend.num_before = num_before
    tuning = run(backend, {"a": technique()})
    total = verdict_of(tuning, "recipe", kind="total")
    assert (total.decision, verdict_of(tuning, "a").decision) == ("kept", "kept")
    assert ("could not be timed: its start was too slow, 743.9 ms" in total.reason) == (num_before == 0)
    assert tuning.recipe == Recipe((Choice("a"),))
    assert tuning.total is not None and tuning.total.ratio == pytest.approx(1 / 0.93, rel=0.01)


def test_a_recipe_that_raises_in_the_final_race_is_not_kept(run: Any, technique: Any, verdict_of: Any) -> None:
    trials = list[int]()

    def fault(spec: TrialSpec, num_steps: int) -> str:
        if spec.role == "candidate" and spec.ident not in trials:
            trials.append(spec.ident)
        return "ValueError: of its own" if len(trials) > 1 and spec.ident == trials[-1] else ""

    tuning = run(SimulatedBackend(choice_factors(a=0.6), fault=fault), {"a": technique()})
    assert verdict_of(tuning, "recipe", kind="total").decision == "failed"
    assert not tuning.recipe.choices
