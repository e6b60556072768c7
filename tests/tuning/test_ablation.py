"""Techniques that are kept provisionally: others are raced on top of them, and they stay only if they gain in the
recipe."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from slipstream.records import Choice, Recipe, TrialSpec
from slipstream.testing.noise_model import Noise, NoiseModel
from slipstream.testing.simulated_backend import Factor, SimulatedBackend, choice_factors
from slipstream.tuning.ablation import going


def _names(recipe: Recipe) -> set[str]:
    return {choice.technique for choice in recipe.choices}


class Lucky(SimulatedBackend):
    """A backend on which the first trials with one technique are faster by chance, for their whole life."""

    def __init__(
        self, name: str, num_lucky: int, others: Factor = lambda recipe: 1.0, luck: float = 0.8, **how: Any
    ) -> None:
        self.entries: list[TrialSpec] = []
        super().__init__(self._factor_of, **how)
        self._lucky, self._num_lucky, self._others, self._luck = name, num_lucky, others, luck

    def enter(self, spec: TrialSpec) -> str:
        self.entries.append(spec)
        return super().enter(spec)

    def _factor_of(self, recipe: Recipe) -> float:
        with_it = [one for one in self.entries if self._lucky in _names(one.recipe)]
        luck = self._luck if self._lucky in _names(recipe) and len(with_it) <= self._num_lucky else 1.0
        return luck * self._others(recipe)


def test_a_clear_lead_is_kept_provisionally_after_a_few_rounds(
    run: Any, technique: Any, listener: Any, verdict_of: Any
) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.7, b=0.8)), {"a": technique(), "b": technique()})
    first = next(one for one in listener.verdicts if one.technique == "a")
    assert first.is_provisional and first.speed.num_rounds < 8, "fewer rounds than would prove it"
    assert "a + b" in listener.entered and listener.entered.index("a + b") < len(listener.entered) - 1
    assert _names(tuning.recipe) == {"a", "b"} and not any(one.is_provisional for one in tuning.verdicts)
    assert verdict_of(tuning, "a", kind="left_out").speed.low > 1.0, "its gain was proved in the recipe"
    assert "worth" in verdict_of(tuning, "a").reason


def test_a_lead_by_chance_is_not_kept_with_a_new_trial(run: Any, technique: Any) -> None:
    tuning = run(Lucky("a", num_lucky=1), {"a": technique()})
    assert not tuning.recipe.choices and tuning.total is None


def test_a_gain_by_chance_in_the_first_half_of_the_final_race_is_not_kept(run: Any, technique: Any) -> None:
    """The trial that led and the first trial of the final race are fast by chance. The second one is not."""
    assert not run(Lucky("a", num_lucky=2), {"a": technique()}).recipe.choices


def test_an_expensive_start_is_not_repeated_in_the_final_race(run: Any, technique: Any, listener: Any) -> None:
    def startup_s(recipe: Recipe) -> float:
        return 30.0 if recipe.choices else 4.0

    tuning = run(SimulatedBackend(choice_factors(a=0.7), startup_s=startup_s), {"a": technique()})
    assert _names(tuning.recipe) == {"a"} and listener.entered.count("a") == 1


def test_after_a_lead_by_chance_the_others_get_the_remaining_time(
    run: Any, technique: Any, listener: Any, verdict_of: Any
) -> None:
    """b gains a twentieth. On top of a, which led by chance, it seems to lose."""
    tuning = run(Lucky("a", num_lucky=1, others=choice_factors(b=0.95)), {"a": technique(), "b": technique()})
    assert _names(tuning.recipe) == {"b"} and tuning.total is not None
    assert abs(tuning.total.ratio - 1 / 0.95) < 0.01
    assert verdict_of(tuning, "a").decision != "kept" and verdict_of(tuning, "b").decision == "kept"
    assert any("a was not kept in the final race" in note for note in tuning.notes)
    totals = [one.recipe for one in listener.verdicts if one.kind == "total"]
    assert [_names(recipe) for recipe in totals] == [{"a"}, {"b"}]
    assert _names(verdict_of(tuning, "recipe", kind="total").recipe) == {"b"}, "the table has only the last one"


def test_a_technique_without_a_gain_in_the_recipe_is_removed(run: Any, technique: Any, verdict_of: Any) -> None:
    """a seems to gain at first. b really gains, on top of a and alone."""

    def factor(recipe: Recipe) -> float:
        names = _names(recipe) - {"nothing"}
        return 0.6 if "b" in names else 0.75 if names == {"a"} else 1.0

    known = {"a": technique(), "b": technique()}
    tuning = run(SimulatedBackend(factor), known)
    assert _names(tuning.recipe) == {"b"} and verdict_of(tuning, "a").decision == "rejected"


def test_ground_that_has_not_lost_is_kept_provisionally_and_removed_if_it_gains_nothing(
    run: Any, technique: Any, listener: Any, verdict_of: Any
) -> None:
    known = {"g": technique(is_ground=True), "a": technique()}
    tuning = run(SimulatedBackend(choice_factors(a=0.7)), known)
    assert "g + a" in listener.entered, "the rest was raced on top of it"
    assert _names(tuning.recipe) == {"a"} and verdict_of(tuning, "g").decision == "rejected"


def test_others_get_time_after_a_technique_won_its_own_race_by_chance(run: Any, technique: Any, listener: Any) -> None:
    """The gain of a is too small for a clear lead, and its single race is decided by chance. b has not been raced when
    a fails in the final race: its start takes long."""

    def startup_s(recipe: Recipe) -> float:
        return 80.0 if "b" in _names(recipe) else 4.0

    noise = Noise(Random(3), noise_model=NoiseModel(spread=0.04, correlation=0.0, drift=0.0, outlier_share=0.0))
    backend = Lucky("a", num_lucky=1, luck=0.93, noise=noise, startup_s=startup_s)
    tuning = run(backend, {"a": technique(), "b": technique()})
    first = next(one for one in listener.verdicts if one.technique == "a")
    assert first.decision == "kept" and not first.is_provisional
    assert not tuning.recipe.choices
    assert any("a was not kept in the final race" in note for note in tuning.notes)


def test_ground_is_kept_if_it_gains_only_together_with_others(run: Any, technique: Any) -> None:
    def factor(recipe: Recipe) -> float:
        return {("g", "a"): 0.5, ("a",): 0.8}.get(tuple(_ordered(recipe)), 1.0)

    tuning = run(SimulatedBackend(factor), {"g": technique(is_ground=True), "a": technique()})
    assert _names(tuning.recipe) == {"g", "a"}


def test_a_trial_that_was_started_for_the_ablation_runs_in_the_final_race_too(
    run: Any, technique: Any, listener: Any
) -> None:
    known = {"g": technique(is_ground=True), "a": technique()}
    tuning = run(SimulatedBackend(choice_factors(a=0.7)), known)
    assert _names(tuning.recipe) == {"a"}
    assert listener.entered.count("a") == 2, "it runs from the ablation of g until the second half of the final race"


def test_the_ablation_starts_with_unproved_techniques_and_then_the_largest_gain(
    run: Any, technique: Any, listener: Any
) -> None:
    def factor(recipe: Recipe) -> float:
        names = _names(recipe)
        return (0.98 if "g" in names else 1.0) * {"a": 0.85, "b": 0.97, "ab": 0.5}.get(
            "".join(sorted(names & {*"ab"})), 1
        )

    known = {"g": technique(is_ground=True), "a": technique(), "b": technique()}
    tuning = run(SimulatedBackend(factor), known)
    assert [choice.technique for choice in tuning.recipe.choices] == ["g", "a", "b"]
    left_out = [one.technique for one in listener.verdicts if one.kind == "left_out"]
    assert left_out[:3] == ["g", "b", "a"], "g never led; a and b did, b by more, on top of a"


def test_an_interrupted_tuning_does_not_keep_provisional_techniques(run: Any, technique: Any, verdict_of: Any) -> None:
    class Interrupted(SimulatedBackend):
        def enter(self, spec: TrialSpec) -> str:
            if {"a", "b"} <= _names(spec.recipe):
                raise KeyboardInterrupt
            return super().enter(spec)

    tuning = run(Interrupted(choice_factors(a=0.7)), {"a": technique(), "b": technique()})
    assert tuning.was_interrupted and not tuning.recipe.choices
    assert verdict_of(tuning, "a").decision == "unsure" and "was not proved" in verdict_of(tuning, "a").reason


def _ordered(recipe: Recipe) -> list[str]:
    return sorted(_names(recipe) - {"nothing"}, key="ga".find)


def test_a_leading_technique_may_be_removed_before_one_without_proof() -> None:
    lead, hopeful, late, proved = (Choice(name) for name in ("lead", "hopeful", "late", "proved"))
    raced: Any = {choice: SimpleNamespace(outcome=None) for choice in (lead, hopeful)}
    raced[proved] = SimpleNamespace(outcome="faster")
    assert going([], [lead, hopeful, proved], raced) == [], "nothing is refuted"
    assert going([hopeful], [lead, hopeful, proved], raced) == [lead, hopeful], (
        "the one with the smaller gain, if it is not proved"
    )
    assert going([hopeful, late], [lead, hopeful, late], raced) == [late], "there was no time for it"
