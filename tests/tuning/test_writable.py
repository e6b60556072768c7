"""The best recipe that can be written into the source."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.records import Choice, Edit, Recipe
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors


def _written(technique: Any, name: str, **card: Any) -> Any:
    made = technique(**card)
    made.edit = lambda observation, setting: [Edit(name, "argument", None, text=str(setting))]
    return made


def test_what_replaces_a_technique_that_cannot_be_written_is_measured_and_proved(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    claims = ("the loader",)
    known = {
        "threads": technique(claims=claims),
        "workers": _written(technique, "workers", claims=claims, settings=(2,)),
        "other": _written(technique, "other"),
    }
    tuning = run(SimulatedBackend(choice_factors(threads=0.5, workers=0.6, other=0.9)), known)
    assert tuning.recipe.setting_of("threads") is True and tuning.total.ratio == pytest.approx(1 / 0.45, rel=0.01)
    assert set(tuning.writable.choices) == {Choice("workers", 2), Choice("other")}
    assert tuning.writable_speed.ratio == pytest.approx(1 / 0.54, rel=0.01) and tuning.writable_speed.is_bounded
    assert verdict_of(tuning, "recipe", kind="writable").cause == "proved"
    assert {edit.technique for edit in tuning.writable_edits} == {"workers", "other"}


def test_nothing_is_raced_if_the_whole_recipe_can_be_written(run: Any, technique: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.5)), {"a": _written(technique, "a")})
    assert tuning.recipe.choices and tuning.writable == Recipe() and tuning.writable_speed is None
    assert [edit.technique for edit in tuning.edits] == ["a"]


def test_there_may_be_nothing_that_can_be_written(run: Any, technique: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.5)), {"a": technique()})
    assert tuning.recipe.choices and tuning.writable == Recipe()


def test_what_can_be_written_but_gains_nothing_is_not_offered(run: Any, technique: Any) -> None:
    claims = ("the loader",)
    known = {"threads": technique(claims=claims), "workers": _written(technique, "workers", claims=claims)}
    tuning = run(SimulatedBackend(choice_factors(threads=0.5, workers=1.02)), known)
    assert tuning.recipe.choices and tuning.writable == Recipe()


def test_with_patchable_only_what_can_be_written_is_searched(run: Any, technique: Any, verdict_of: Any) -> None:
    known = {"threads": technique(), "workers": _written(technique, "workers")}
    tuning = run(SimulatedBackend(choice_factors(threads=0.5, workers=0.6)), known, is_patchable=True)
    assert tuning.recipe == Recipe((Choice("workers"),))
    assert "slipstream patch cannot write it" in verdict_of(tuning, "threads").reason


def test_an_edit_that_raises_does_not_end_the_tuning(run: Any, technique: Any) -> None:
    broken = technique()
    broken.edit = lambda observation, setting: 1 / 0
    tuning = run(SimulatedBackend(choice_factors(a=0.5)), {"a": broken})
    assert tuning.recipe.choices
    assert [edit.kind for edit in tuning.edits] == ["by_hand"] and "ZeroDivisionError" in tuning.edits[0].reason
