"""What is removed from a recipe, in whole tunings on the simulated backend."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.records import Recipe
from slipstream.techniques._core.card import YES, no
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors


def _names(recipe: Recipe) -> set[str]:
    return {choice.technique for choice in recipe.choices} - {"nothing"}


def test_superfluous_techniques_are_removed_in_one_race(run: Any, technique: Any, verdict_of: Any) -> None:
    """They gain at first, and nothing in the recipe that a later pass builds."""

    def factor(recipe: Recipe) -> float:
        names = _names(recipe)
        if "late" in names:
            return 0.4
        return {0: 1.0, 1: 0.8, 2: 0.65}.get(len(names), 0.5)

    late = technique(answer=no("not alone"))
    late.applies_with = lambda observation, recipe: YES if len(recipe.choices) >= 3 else no("not yet")
    tuning = run(SimulatedBackend(factor), {**{name: technique() for name in "abc"}, "late": late})
    assert _names(tuning.recipe) == {"late"}
    for name in "abc":
        assert (verdict_of(tuning, name).decision, verdict_of(tuning, name).cause) == ("rejected", "superfluous")
        left_out = verdict_of(tuning, name, kind="left_out")
        assert left_out.own_ratio == pytest.approx(1.0) and left_out.decision == "rejected"
    assert verdict_of(tuning, "late", kind="left_out").own_ratio == pytest.approx(0.5 / 0.4)
    assert tuning.total.ratio == pytest.approx(2.5, rel=0.01)


def test_of_two_that_replace_each_other_one_stays(run: Any, technique: Any, verdict_of: Any) -> None:
    """Without one of them the recipe is as fast, without both it is not."""

    def factor(recipe: Recipe) -> float:
        names = _names(recipe)
        either = 0.7 if names & {"a", "b"} else 1.0
        return either * (0.8 if "c" in names else 1.0) * (0.985 if {"a", "b", "c"} <= names else 1.0)

    tuning = run(SimulatedBackend(factor), {name: technique() for name in "abc"}, margin=0.02)
    assert "c" in _names(tuning.recipe) and len(_names(tuning.recipe) & {"a", "b"}) == 1
    assert tuning.total.ratio == pytest.approx(1 / 0.56, rel=0.03)


def test_ground_that_gains_nothing_is_removed(run: Any, technique: Any, verdict_of: Any) -> None:
    known = {"g": technique(is_ground=True), "a": technique()}
    tuning = run(SimulatedBackend(choice_factors(a=0.7, g=0.999)), known)
    assert _names(tuning.recipe) == {"a"}
    assert verdict_of(tuning, "g").decision == "rejected"


def test_ground_is_kept_if_it_gains_only_together_with_others(run: Any, technique: Any) -> None:
    def factor(recipe: Recipe) -> float:
        names = _names(recipe)
        return 0.5 if names == {"g", "a"} else 0.8 if names == {"a"} else 0.999 if names == {"g"} else 1.0

    assert _names(run(SimulatedBackend(factor), {"g": technique(is_ground=True), "a": technique()}).recipe) == {
        "g",
        "a",
    }


def test_a_technique_that_hurts_the_recipe_is_removed(run: Any, technique: Any, verdict_of: Any) -> None:
    def factor(recipe: Recipe) -> float:
        names = _names(recipe)
        return {"a": 0.9, "ab": 0.7, "abc": 0.6, "bc": 0.5, "b": 0.8, "c": 0.95, "ac": 0.85}.get(
            "".join(sorted(names)), 1.0
        )

    tuning = run(SimulatedBackend(factor), {name: technique() for name in "abc"})
    assert _names(tuning.recipe) == {"b", "c"} and verdict_of(tuning, "a").cause == "superfluous"


def test_a_recipe_of_one_technique_needs_no_ablation(run: Any, technique: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.7)), {"a": technique()})
    assert not any(verdict.kind == "left_out" for verdict in tuning.verdicts)
