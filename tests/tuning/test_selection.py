"""Passes of selection in whole tunings on the simulated backend."""

from __future__ import annotations

import random
from typing import Any

import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Choice, Fingerprint, Length, Recipe, TechniqueNote, TrialRecord, TrialSpec
from slipstream.techniques._core.card import YES, no
from slipstream.testing.made_fingerprints import made_fingerprint, made_fingerprint_of
from slipstream.testing.made_sessions import made_session
from slipstream.testing.noise_model import Noise, NoiseModel
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors


def _recipe(**choices: Any) -> Recipe:
    return Recipe(tuple(Choice(name, setting) for name, setting in choices.items()))


def _names(recipe: Recipe) -> set[str]:
    return {choice.technique for choice in recipe.choices} - {"nothing"}


def test_winners_are_kept_together_and_the_rest_is_not(run: Any, technique: Any, verdict_of: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.8, b=0.9, slow=1.5))
    tuning = run(backend, {"a": technique(), "b": technique(), "useless": technique(), "slow": technique()})
    assert tuning.recipe == _recipe(a=True, b=True) and tuning.is_complete
    causes = {name: verdict_of(tuning, name).cause for name in ("a", "b", "slow", "useless")}
    assert causes == {"a": "gains", "b": "gains", "slow": "no_gain", "useless": "no_gain"}
    assert [verdict_of(tuning, name).own_ratio for name in "ab"] == pytest.approx([1 / 0.8, 1 / 0.9])


def test_all_techniques_that_apply_are_raced_within_the_default_budget(run: Any, technique: Any) -> None:
    """Whether starts or blocks take the time."""
    for step_s, start_s in ((0.05, 3.0), (1.2, 5.0), (0.02, 20.0)):
        backend = SimulatedBackend(choice_factors(a=0.8), step_s=step_s, startup_s=lambda recipe, s=start_s: s)
        seen = diagnose(made_session(forward_ms=step_s * 400, backward_ms=step_s * 600))
        tuning = run(backend, {"a": technique(), **{f"u{number}": technique() for number in range(16)}}, seen)
        assert _names(tuning.recipe) == {"a"}
        assert not [verdict.technique for verdict in tuning.verdicts if verdict.cause == "not_raced"]


def test_techniques_that_conflict_are_not_combined_and_the_better_one_stays(
    run: Any, technique: Any, verdict_of: Any, listener: Any
) -> None:
    known = {"a": technique(claims=("the call",)), "b": technique(claims=("the call",)), "c": technique()}
    tuning = run(SimulatedBackend(choice_factors(a=0.8, b=0.7, c=0.9)), known)
    assert tuning.recipe == _recipe(b=True, c=True)
    verdict = verdict_of(tuning, "a")
    assert (verdict.decision, verdict.cause) == ("rejected", "conflict")
    assert "a and b both claim the call" in verdict.other
    assert not any("a" in trial.split(" + ") and "b" in trial.split(" + ") for trial in listener.entered)


def test_what_is_faster_alone_but_not_beside_the_best_is_left_out(run: Any, technique: Any, verdict_of: Any) -> None:
    def factor(recipe: Recipe) -> float:
        names = _names(recipe)
        return 0.9 if names == {"a", "b"} else 0.7 if "a" in names else 0.8 if "b" in names else 1.0

    tuning = run(SimulatedBackend(factor), {"a": technique(), "b": technique()})
    assert tuning.recipe == _recipe(a=True)
    assert verdict_of(tuning, "b").decision == "rejected"
    assert verdict_of(tuning, "b").cause in ("not_together", "no_gain")


def test_two_techniques_for_the_input_do_not_spoil_the_rest(run: Any, technique: Any, verdict_of: Any) -> None:
    """Workers gain alone and cost time beside a cache. The technique for the model gains in any case."""

    def factor(recipe: Recipe) -> float:
        names = {choice.technique for choice in recipe.choices}
        of_input = (
            1.3 if {"cache", "workers"} <= names else 0.5 if "cache" in names else 0.7 if "workers" in names else 1
        )
        return of_input * (0.85 if "model" in names else 1.0)

    techniques = {
        "cache": technique(causes=("slow_decode",)),
        "workers": technique(causes=("no_workers",)),
        "model": technique(causes=("full_precision",)),
    }
    tuning = run(SimulatedBackend(factor), techniques)
    assert tuning.recipe == _recipe(cache=True, model=True)
    assert verdict_of(tuning, "workers").decision == "rejected"


def test_another_pass_races_on_top_of_the_winners(run: Any, technique: Any, verdict_of: Any, listener: Any) -> None:
    """Workers gain nothing in a step that computes. Once it computes less, it waits for batches."""

    def factor(recipe: Recipe) -> float:
        faster, workers = recipe.setting_of("faster"), recipe.setting_of("workers")
        return (0.3 if workers else 0.5) if faster else (1.02 if workers else 1.0)

    tuning = run(SimulatedBackend(factor), {"workers": technique(), "faster": technique()})
    assert tuning.recipe == _recipe(faster=True, workers=True)
    verdict = verdict_of(tuning, "workers")
    assert verdict.cause == "gains" and verdict.own_ratio == pytest.approx(0.5 / 0.3, rel=0.01)
    assert verdict.speed.ratio == pytest.approx(1 / 0.3, rel=0.01), "against the unchanged script"
    assert listener.entered.index("workers") < listener.entered.index("faster + workers")


def test_an_arm_that_lost_much_does_not_race_again(run: Any, technique: Any, listener: Any) -> None:
    run(SimulatedBackend(choice_factors(a=0.7, worse=1.5)), {"a": technique(), "worse": technique()})
    assert "worse" in listener.entered and "a + worse" not in listener.entered


def test_settings_are_found_by_way_of_their_neighbours(run: Any, technique: Any, verdict_of: Any) -> None:
    factors = {1: 0.9, 2: 0.7, 4: 0.6, 8: 0.65, 16: 0.5}
    backend = SimulatedBackend(lambda recipe: factors.get(int(recipe.setting_of("w") or 0), 1.0))
    tuning = run(backend, {"w": technique(settings=(2, 1, 4, 8, 16))})
    assert tuning.recipe == _recipe(w=4)
    assert {verdict_of(tuning, "w", setting).decision for setting in (1, 2, 8)} == {"rejected"}
    assert verdict_of(tuning, "w", 4).decision == "kept"
    assert not any(one.setting == 16 for one in tuning.verdicts), "behind a setting that is worse"


def test_named_settings_are_tried_down_the_list(run: Any, technique: Any) -> None:
    factors = {"default": 0.8, "worse": 0.9, "best": 0.5}
    backend = SimulatedBackend(lambda recipe: factors.get(str(recipe.setting_of("c")), 1.0))
    assert run(backend, {"c": technique(settings=("default", "worse", "best"))}).recipe == _recipe(c="best")


def test_a_second_setting_races_beside_the_first(run: Any, technique: Any, verdict_of: Any) -> None:
    factors = {8: 1.2, 2: 0.7}
    backend = SimulatedBackend(lambda recipe: factors.get(int(recipe.setting_of("w") or 0), 1.0))
    tuning = run(backend, {"w": technique(settings=(8, 2))})
    assert tuning.recipe == _recipe(w=2) and verdict_of(tuning, "w", 8).decision == "rejected"


def test_a_latecomer_is_raced_on_top_of_the_recipe_that_it_needs(run: Any, technique: Any, verdict_of: Any) -> None:
    late = technique(answer=no("there are no workers"))
    late.applies_with = lambda observation, recipe: YES if recipe.setting_of("w") else no("still none")
    tuning = run(SimulatedBackend(choice_factors(w=0.5, late=0.8)), {"w": technique(), "late": late})
    assert tuning.recipe == _recipe(w=True, late=True)
    assert verdict_of(tuning, "late").cause == "gains"


def _late_cure(technique: Any) -> Any:
    """A technique that applies only after trials have shown that steps get longer."""
    cure = technique()
    cure.applies = lambda observation: YES if observation.is_slowing else no("there are none")
    cure.applies_with = lambda observation, recipe: cure.applies(observation)
    return cure


@pytest.mark.parametrize("has_winner", [True, False])
def test_a_technique_against_growing_steps_is_raced_if_steps_grow(
    run: Any, technique: Any, verdict_of: Any, has_winner: bool
) -> None:
    def ageing(recipe: Recipe, num_steps: int) -> float:
        return 1.0 if recipe.setting_of("cure") is not None else 1.0 + num_steps / 50

    backend = SimulatedBackend(choice_factors(a=0.8 if has_winner else 1.02), ageing=ageing)
    tuning = run(backend, {"a": technique(), "cure": _late_cure(technique)})
    assert tuning.recipe.setting_of("cure") is True
    assert verdict_of(tuning, "cure").decision == "kept"


def test_a_technique_against_growing_steps_does_not_apply_if_they_stay_the_same(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.8)), {"a": technique(), "cure": _late_cure(technique)})
    assert verdict_of(tuning, "cure").decision == "not_applicable"


def test_the_ground_is_raced_first_and_the_others_on_top_of_it(
    run: Any, technique: Any, verdict_of: Any, listener: Any
) -> None:
    known = {"a": technique(), "g": technique(is_ground=True), "slow": technique()}
    tuning = run(SimulatedBackend(choice_factors(g=0.6, a=0.8, slow=5.0)), known)
    assert tuning.recipe == _recipe(g=True, a=True)
    assert listener.entered.index("g") < listener.entered.index("g + a")
    assert "slow" not in listener.entered and "g + slow" in listener.entered
    assert verdict_of(tuning, "a").speed.ratio == pytest.approx(1 / 0.48, rel=0.02), "against the unchanged script"
    assert verdict_of(tuning, "a").own_ratio == pytest.approx(1 / 0.8, rel=0.02)
    assert any("g comes first" in note for note in tuning.notes)


def test_others_are_not_raced_on_top_of_ground_that_loses(run: Any, technique: Any, listener: Any) -> None:
    known = {"a": technique(), "g": technique(is_ground=True)}
    tuning = run(SimulatedBackend(choice_factors(a=0.8, g=1.05)), known)
    assert tuning.recipe == _recipe(a=True) and "a" in listener.entered


def test_an_opt_in_technique_is_timed_and_kept_only_on_request(run: Any, technique: Any, verdict_of: Any) -> None:
    known = {"off": technique(is_opt_in=True)}
    tuning = run(SimulatedBackend(choice_factors(off=0.7)), known)
    verdict = verdict_of(tuning, "off")
    assert tuning.recipe == Recipe() and (verdict.decision, verdict.cause) == ("rejected", "opt_in")
    assert verdict.own_ratio == pytest.approx(1 / 0.7)
    assert run(SimulatedBackend(choice_factors(off=0.7)), known, only=("off",)).recipe == _recipe(off=True)


def test_a_technique_that_never_pays_off_is_not_kept(run: Any, technique: Any, verdict_of: Any) -> None:
    known = {"c": technique()}

    def backend() -> SimulatedBackend:
        return SimulatedBackend(choice_factors(c=0.8), startup_s=lambda recipe: 24.0 if recipe.setting_of("c") else 4.0)

    short = diagnose(made_session(length=Length(num_steps=1500)))
    verdict = verdict_of(run(backend(), known, short), "c")
    assert (verdict.cause, verdict.payback_steps, verdict.num_training_steps) == ("never_pays", 2000, 1500)
    verdict = verdict_of(run(backend(), known, diagnose(made_session(length=Length(num_steps=10_000)))), "c")
    assert verdict.cause == "gains" and verdict.payback_steps == 2000 and verdict.one_off_s == 20.0


def test_a_technique_that_is_slow_to_start_races_after_the_cheap_ones_are_ranked(
    run: Any, technique: Any, listener: Any
) -> None:
    known = {"c": technique(is_slow_to_start=True), **{f"u{number}": technique() for number in range(7)}}
    backend = SimulatedBackend(choice_factors(c=0.6), startup_s=lambda recipe: 40.0 if recipe.setting_of("c") else 4.0)
    assert run(backend, known).recipe == _recipe(c=True)
    assert listener.entered.index("c") > max(listener.entered.index(f"u{number}") for number in range(7))


def test_a_technique_that_fails_is_a_record(run: Any, technique: Any, verdict_of: Any) -> None:
    def fault(spec: TrialSpec, num_steps: int) -> str:
        return "RuntimeError: no kernel" if spec.recipe.setting_of("a") else ""

    tuning = run(SimulatedBackend(choice_factors(b=0.5), fault=fault), {"a": technique(), "b": technique()})
    verdict = verdict_of(tuning, "a")
    assert (verdict.decision, verdict.cause, verdict.reason) == ("failed", "failed", "RuntimeError: no kernel")
    assert tuning.recipe == _recipe(b=True)


def test_a_technique_that_declines_is_not_tried_again(run: Any, technique: Any, verdict_of: Any) -> None:
    class Declining(SimulatedBackend):
        def record(self, trial: int) -> TrialRecord:
            record = super().record(trial)
            if not record.spec.recipe.setting_of("cure"):
                return record
            return TrialRecord(record.spec, record.timings, declined=[TechniqueNote("cure", "no loader")])

    backend = Declining(choice_factors(a=0.8))
    tuning = run(backend, {"a": technique(), "cure": technique()})
    verdict = verdict_of(tuning, "cure")
    assert (verdict.decision, verdict.cause, verdict.reason) == ("not_applicable", "declined", "no loader")
    assert sum("cure" in _names(spec.recipe) for spec in backend.specs) == 1


def test_an_unsound_technique_is_rejected_however_fast(run: Any, technique: Any, verdict_of: Any) -> None:
    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        wrong = spec.recipe.setting_of("a") is not None
        return made_fingerprint(num_steps, loss_shift=0.5) if wrong else made_fingerprint_of(spec, num_steps)

    tuning = run(SimulatedBackend(choice_factors(a=0.5, b=0.9), fingerprint=seen), {"a": technique(), "b": technique()})
    assert tuning.recipe == _recipe(b=True)
    verdict = verdict_of(tuning, "a")
    assert (verdict.decision, verdict.cause) == ("rejected", "unsound") and verdict.numerics.is_sound is False


def test_a_technique_without_recorded_losses_is_unsure_and_never_kept(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    backend = SimulatedBackend(choice_factors(a=0.5), fingerprint=lambda spec, num_steps: Fingerprint())
    tuning = run(backend, {"a": technique()})
    assert tuning.recipe == Recipe()
    assert (verdict_of(tuning, "a").decision, verdict_of(tuning, "a").cause) == ("unsure", "unchecked")


class Lucky(SimulatedBackend):
    """The first processes with technique `a` are faster by chance, for their whole life."""

    def __init__(self, num_lucky: int, luck: float = 0.8, **how: Any) -> None:
        super().__init__(self._factor_of, **how)
        self._num_lucky, self._luck = num_lucky, luck

    def _factor_of(self, recipe: Recipe) -> float:
        with_it = [spec for spec in self.specs if "a" in _names(spec.recipe)]
        return self._luck if "a" in _names(recipe) and len(with_it) <= self._num_lucky else 1.0


@pytest.mark.parametrize("num_lucky", [1, 2, 3])
def test_a_gain_of_lucky_processes_is_not_kept(run: Any, technique: Any, num_lucky: int) -> None:
    """Of the first rung, of the second one too, and of the race that confirms it."""
    tuning = run(Lucky(num_lucky), {"a": technique(), "b": technique()})
    assert not tuning.recipe.choices and tuning.total is None


def test_winners_that_a_race_in_new_processes_does_not_confirm_are_rejected(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    tuning = run(Lucky(num_lucky=4), {"a": technique(), "b": technique()})
    assert not tuning.recipe.choices
    assert verdict_of(tuning, "a").decision != "kept"


def test_a_recipe_that_was_ahead_but_not_confirmed_is_still_offered_to_the_proof(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    """Luck of single processes hides a gain in the race of the winners. The proof has more processes."""

    class Unlucky(SimulatedBackend):
        def __init__(self) -> None:
            super().__init__(self._factor_of)

        def _factor_of(self, recipe: Recipe) -> float:
            if "a" not in _names(recipe):
                return 1.0
            numbers = [spec for spec in self.specs if "a" in _names(spec.recipe) and not spec.is_cold]
            is_cold = bool(self.specs) and self.specs[-1].is_cold
            return 1.02 if len(numbers) > 2 and not is_cold else 0.8

    tuning = run(Unlucky(), {"a": technique()})
    assert tuning.recipe == _recipe(a=True) and verdict_of(tuning, "a").decision == "kept"


def test_a_short_budget_races_fewer_arms_and_names_the_others(run: Any, technique: Any) -> None:
    """Time is never spread over more arms than it can decide, and some of it is kept for the proof."""
    known = {"a": technique(), **{f"u{number}": technique() for number in range(12)}}
    tuning = run(SimulatedBackend(choice_factors(a=0.6)), known, budget_s=150.0)
    assert tuning.recipe == _recipe(a=True)
    not_raced = {verdict.technique for verdict in tuning.verdicts if verdict.cause == "not_raced"}
    raced = {verdict.technique for verdict in tuning.verdicts if verdict.own_ratio is not None}
    assert len(not_raced) > 3 and "a" in raced and not not_raced & raced
    assert not_raced | raced >= set(known)


@pytest.mark.parametrize("has_ground", [True, False])
def test_a_budget_that_is_too_short_for_a_proof_is_used(run: Any, technique: Any, has_ground: bool) -> None:
    """The most promising technique is measured at least."""
    known = {"a": technique(), "b": technique(), **({"g": technique(is_ground=True)} if has_ground else {})}
    backend = SimulatedBackend(choice_factors(a=0.5))
    tuning = run(backend, known, budget_s=40.0)
    assert tuning.candidate == _recipe(a=True) and tuning.candidate_speed.ratio == pytest.approx(2.0, rel=0.01)
    assert backend.now_s() <= 48.0


def test_what_was_not_raced_is_named_after_an_interruption_too(run: Any, technique: Any) -> None:
    class Interrupted(SimulatedBackend):
        def run_block(self, *of_block: Any, **how: Any) -> Any:
            if self.num_timings == 9:
                raise KeyboardInterrupt
            return super().run_block(*of_block, **how)

    tuning = run(Interrupted(choice_factors(a=0.6)), {"a": technique(), "b": technique()})
    assert tuning.was_interrupted
    assert {verdict.technique for verdict in tuning.verdicts if verdict.cause == "not_raced"} == {"a", "b"}


@pytest.mark.parametrize("seed", range(4))
def test_in_strong_noise_only_the_real_gain_is_found(run: Any, technique: Any, seed: int) -> None:
    noise = Noise(random.Random(seed), noise_model=NoiseModel())
    backend = SimulatedBackend(choice_factors(g=1 / 1.1), noise=noise, seed=seed)
    known = {**{f"u{number}": technique() for number in range(5)}, "g": technique()}
    tuning = run(backend, known, seed=seed)
    assert "g" in _names(tuning.recipe)
    assert tuning.total.low <= 1.1 <= tuning.total.high


def test_no_candidate_no_race(run: Any, technique: Any) -> None:
    backend = SimulatedBackend()
    tuning = run(backend, {"a": technique(answer=no("not here"))})
    assert backend.specs == [] and tuning.is_complete and tuning.total is None and tuning.base_step_ms > 0
