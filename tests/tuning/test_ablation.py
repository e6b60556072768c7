"""What is built on before it is decided: raced on top of at once, and kept only if it stands up inside the recipe."""

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
    """Whose first riders with this technique are faster for life, by luck."""

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


def test_a_clear_lead_is_built_on_after_a_few_rounds(run: Any, technique: Any, listener: Any, verdict_of: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.7, b=0.8)), {"a": technique(), "b": technique()})
    first = next(one for one in listener.verdicts if one.technique == "a")
    assert first.is_provisional and first.speed.num_rounds < 8, "fewer rounds than would prove it"
    assert "a + b" in listener.entered and listener.entered.index("a + b") < len(listener.entered) - 1
    assert _names(tuning.recipe) == {"a", "b"} and not any(one.is_provisional for one in tuning.verdicts)
    assert verdict_of(tuning, "a", kind="left_out").speed.low > 1.0, "what it is worth was proved in the recipe"
    assert "worth" in verdict_of(tuning, "a").reason


def test_a_lead_by_luck_does_not_outlive_a_fresh_trial(run: Any, technique: Any) -> None:
    tuning = run(Lucky("a", num_lucky=1), {"a": technique()})
    assert not tuning.recipe.choices and tuning.total is None


def test_luck_of_the_last_race_does_not_outlive_its_first_half(run: Any, technique: Any) -> None:
    """Both the rider that led and the first of the last race were lucky; the one that was started anew is not."""
    assert not run(Lucky("a", num_lucky=2), {"a": technique()}).recipe.choices


def test_a_start_that_is_dear_is_not_made_twice_in_the_last_race(run: Any, technique: Any, listener: Any) -> None:
    def startup_s(recipe: Recipe) -> float:
        return 30.0 if recipe.choices else 4.0

    tuning = run(SimulatedBackend(choice_factors(a=0.7), startup_s=startup_s), {"a": technique()})
    assert _names(tuning.recipe) == {"a"} and listener.entered.count("a") == 1


def test_if_the_lead_was_luck_the_others_have_the_time_that_is_left(
    run: Any, technique: Any, listener: Any, verdict_of: Any
) -> None:
    """b gains a twentieth. On top of a, whose lead was luck, it seemed to lose."""
    tuning = run(Lucky("a", num_lucky=1, others=choice_factors(b=0.95)), {"a": technique(), "b": technique()})
    assert _names(tuning.recipe) == {"b"} and tuning.total is not None
    assert abs(tuning.total.ratio - 1 / 0.95) < 0.01
    assert verdict_of(tuning, "a").decision != "kept" and verdict_of(tuning, "b").decision == "kept"
    assert any("a did not hold in the end" in note for note in tuning.notes)
    totals = [one.recipe for one in listener.verdicts if one.kind == "total"]
    assert [_names(recipe) for recipe in totals] == [{"a"}, {"b"}]
    assert _names(verdict_of(tuning, "recipe", kind="total").recipe) == {"b"}, "the table has the last one alone"


def test_what_is_worth_nothing_inside_the_recipe_goes(run: Any, technique: Any, verdict_of: Any) -> None:
    """a seems to gain at first, b really does, on top of it and alone."""

    def factor(recipe: Recipe) -> float:
        names = _names(recipe) - {"nothing"}
        return 0.6 if "b" in names else 0.75 if names == {"a"} else 1.0

    known = {"a": technique(), "b": technique()}
    tuning = run(SimulatedBackend(factor), known)
    assert _names(tuning.recipe) == {"b"} and verdict_of(tuning, "a").decision == "rejected"


def test_ground_that_has_not_lost_is_built_on_and_goes_again_where_it_is_worth_nothing(
    run: Any, technique: Any, listener: Any, verdict_of: Any
) -> None:
    known = {"g": technique(is_ground=True), "a": technique()}
    tuning = run(SimulatedBackend(choice_factors(a=0.7)), known)
    assert "g + a" in listener.entered, "the rest was raced on top of it"
    assert _names(tuning.recipe) == {"a"} and verdict_of(tuning, "g").decision == "rejected"


def test_others_have_their_time_though_the_luck_won_its_own_race(run: Any, technique: Any, listener: Any) -> None:
    """Whose gain is too small to be built on was decided, beyond the doubt that luck for life leaves. b has not been
    raced when it fails: its start takes long."""

    def startup_s(recipe: Recipe) -> float:
        return 80.0 if "b" in _names(recipe) else 4.0

    noise = Noise(Random(3), noise_model=NoiseModel(spread=0.04, correlation=0.0, drift=0.0, outlier_share=0.0))
    backend = Lucky("a", num_lucky=1, luck=0.93, noise=noise, startup_s=startup_s)
    tuning = run(backend, {"a": technique(), "b": technique()})
    first = next(one for one in listener.verdicts if one.technique == "a")
    assert first.decision == "kept" and not first.is_provisional
    assert not tuning.recipe.choices
    assert any("a did not hold in the end" in note for note in tuning.notes)


def test_ground_stays_where_only_the_others_bring_out_its_worth(run: Any, technique: Any) -> None:
    def factor(recipe: Recipe) -> float:
        return {("g", "a"): 0.5, ("a",): 0.8}.get(tuple(_ordered(recipe)), 1.0)

    tuning = run(SimulatedBackend(factor), {"g": technique(is_ground=True), "a": technique()})
    assert _names(tuning.recipe) == {"g", "a"}


def test_one_that_was_started_to_leave_something_out_rides_in_the_last_race_too(
    run: Any, technique: Any, listener: Any
) -> None:
    known = {"g": technique(is_ground=True), "a": technique()}
    tuning = run(SimulatedBackend(choice_factors(a=0.7)), known)
    assert _names(tuning.recipe) == {"a"}
    assert listener.entered.count("a") == 2, "left behind by g, it rides until the last race starts everyone anew"


def test_what_must_be_proved_is_left_out_first_and_then_the_greatest_hope(
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


def test_broken_off_what_was_only_built_on_is_not_kept(run: Any, technique: Any, verdict_of: Any) -> None:
    class Interrupted(SimulatedBackend):
        def enter(self, spec: TrialSpec) -> str:
            if {"a", "b"} <= _names(spec.recipe):
                raise KeyboardInterrupt
            return super().enter(spec)

    tuning = run(Interrupted(choice_factors(a=0.7)), {"a": technique(), "b": technique()})
    assert tuning.was_interrupted and not tuning.recipe.choices
    assert verdict_of(tuning, "a").decision == "unsure" and "not been proved" in verdict_of(tuning, "a").reason


def _ordered(recipe: Recipe) -> list[str]:
    return sorted(_names(recipe) - {"nothing"}, key="ga".find)


def test_a_lead_may_go_before_one_that_is_refuted_for_want_of_proof() -> None:
    lead, hope, late, proved = (Choice(name) for name in ("lead", "hope", "late", "proved"))
    raced: Any = {choice: SimpleNamespace(outcome=None) for choice in (lead, hope)}
    raced[proved] = SimpleNamespace(outcome="faster")
    assert going([], [lead, hope, proved], raced) == [], "nothing is refuted"
    assert going([hope], [lead, hope, proved], raced) == [lead, hope], "whichever seems to be worth less, if not proved"
    assert going([hope, late], [lead, hope, late], raced) == [late], "there was no time for it"
