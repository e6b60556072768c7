from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.records import Choice, Edit, Finding, Recipe, Session
from slipstream.techniques._core.card import YES, no
from slipstream.techniques._core.observation import Observation
from slipstream.tuning.candidates import Candidate, latecomers, loosest, propose, settings_to_race, untried_neighbours
from slipstream.tuning.options import TuneOptions


def _names(session: Session, order: TuneOptions, known: dict[str, Any]) -> list[str]:
    return [candidate.technique for candidate in propose(session, order, known)[0]]


def test_the_best_technique_for_every_cause_comes_before_the_second_best_for_any(
    session: Session, technique: Any
) -> None:
    findings = [
        Finding("slow", "", "", 1.5, "", techniques=["b", "a"]),
        Finding("late", "", "", 1.2, "", techniques=["c"]),
    ]
    seen = msgspec.structs.replace(session, findings=findings)
    known = {name: technique(causes=("slow",)) for name in "abd"} | {"c": technique(causes=("late",)), "e": technique()}
    assert _names(seen, TuneOptions(), known) == ["b", "c", "a", "d", "e"]


def test_candidates_come_in_the_order_of_the_predicted_gain(session: Session, technique: Any) -> None:
    seen = msgspec.structs.replace(
        session, findings=[Finding("slow", "", "", 1.2, ""), Finding("slower", "", "", 2.0, "")]
    )
    known = {
        "nothing": technique(),
        "proved": technique(needs_proof=True),
        "plain": technique(),
        "some": technique(causes=("slow",)),
        "most": technique(causes=("other", "slower")),
        "coarse": technique(numerics="approximate"),
    }
    assert _names(seen, TuneOptions(), known) == ["most", "some", "plain", "coarse", "proved"]


def test_a_technique_that_does_not_apply_has_a_reason(session: Session, technique: Any) -> None:
    known = {"a": technique(answer=no("the script does it already")), "b": technique(settings=())}
    candidates, refused = propose(session, TuneOptions(), known)
    assert candidates == []
    assert [(one.decision, one.reason) for one in refused] == [
        ("not_applicable", "the script does it already"),
        ("not_applicable", "no setting is worth trying here"),
    ]


def test_the_options_without_and_only(session: Session, technique: Any) -> None:
    known = {"a": technique(), "b": technique(), "c": technique()}
    candidates, refused = propose(session, TuneOptions(without=("b",)), known)
    assert [one.technique for one in candidates] == ["a", "c"]
    assert [(one.technique, one.reason) for one in refused] == [("b", "left out by --without")]
    candidates, refused = propose(session, TuneOptions(only=("c",)), known)
    assert [one.technique for one in candidates] == ["c"] and refused == []


def test_looser_numerics_than_allowed_are_not_tried_and_the_reason_names_allow(
    session: Session, technique: Any
) -> None:
    known = {"half": technique("approximate"), "batch": technique("different")}
    candidates, (refused,) = propose(session, TuneOptions(), known)
    assert [one.technique for one in candidates] == ["half"]
    assert refused.technique == "batch" and "--allow different" in refused.reason
    assert _names(session, TuneOptions(allow="reordered"), known) == []


@pytest.mark.parametrize("option", ["only", "without"])
def test_an_unknown_name_is_refused_with_a_list_of_known_names(session: Session, technique: Any, option: str) -> None:
    known = {"nothing": technique(), "workers": technique(), "compile": technique()}
    with pytest.raises(ValueError, match=f"--{option} wokers: .* there are: workers, compile$"):
        propose(session, TuneOptions(**{option: ("wokers",)}), known)


def test_an_opt_in_technique_is_raced_but_kept_only_if_it_is_named(session: Session, technique: Any) -> None:
    known = {"off": technique(is_opt_in=True), "on": technique()}
    keepable = {one.technique: one.is_keepable for one in propose(session, TuneOptions(), known)[0]}
    assert keepable == {"off": False, "on": True}
    assert propose(session, TuneOptions(only=("off",)), known)[0][0].is_keepable


def test_a_technique_that_fails_does_not_affect_the_others(session: Session, technique: Any) -> None:
    broken = technique()
    broken.applies = lambda observation: 1 / 0
    candidates, (refused,) = propose(session, TuneOptions(), {"broken": broken, "fine": technique()})
    assert [one.technique for one in candidates] == ["fine"]
    assert refused.decision == "failed" and "ZeroDivisionError" in refused.reason


def test_latecomers_apply_only_beside_a_recipe(session: Session, technique: Any) -> None:
    late = technique(answer=no("there are no workers"))
    late.applies_with = lambda observation, recipe: YES if recipe.setting_of("workers") else no("still none")
    known = {"late": late, "workers": technique()}
    raced = {"workers"}
    assert latecomers(Observation(session), TuneOptions(), known, Recipe(), raced) == []
    recipe = Recipe((Choice("workers", 2),))
    assert [one.technique for one in latecomers(Observation(session), TuneOptions(), known, recipe, raced)] == ["late"]
    assert latecomers(Observation(session), TuneOptions(without=("late",)), known, recipe, raced) == []
    assert latecomers(Observation(session), TuneOptions(only=("workers",)), known, recipe, raced) == []


def test_a_recipe_is_as_loose_as_its_loosest_technique() -> None:
    assert loosest(["reordered", "approximate", "identical"]) == "approximate"
    assert loosest([]) == "identical"


def test_a_latecomers_settings_may_depend_on_the_recipe(session: Session, technique: Any) -> None:
    late = technique(settings=(4,))
    late.applies_with = lambda observation, recipe: YES
    late.settings_with = lambda observation, recipe: [recipe.setting_of("workers")]
    (found,) = latecomers(Observation(session), TuneOptions(), {"late": late}, Recipe((Choice("workers", 2),)), set())
    assert found.settings == (2,)


def _candidate(technique: Any, *settings: Any) -> Candidate:
    return Candidate("w", technique().CARD, settings)


def test_the_best_guesses_race_first_and_then_the_best_with_its_neighbour(technique: Any) -> None:
    workers = _candidate(technique, 2, 1, 4, 8)
    assert settings_to_race(workers, {}) == [2, 1]
    assert settings_to_race(workers, {2: 0.3, 1: 0.1}) == [2, 4]
    assert settings_to_race(workers, {2: 0.3, 1: 0.1, 4: 0.5}) == [4, 8]
    assert settings_to_race(workers, {2: 0.3, 1: 0.1, 4: 0.2}) == [2], "both neighbours were tried"


def test_the_neighbours_of_a_number_are_the_next_larger_and_smaller_one(technique: Any) -> None:
    workers = _candidate(technique, 2, 1, 4, 8)
    assert untried_neighbours(workers, 2, []) == [4, 1]
    assert untried_neighbours(workers, 2, [4]) == [1]
    assert untried_neighbours(workers, 8, []) == [4]
    assert untried_neighbours(workers, 3, []) == [], "not one of its settings"
    modes = _candidate(technique, "default", "other", "best")
    assert untried_neighbours(modes, "default", ["default", "other"]) == ["best"], "names have no order"


def test_only_what_can_be_written_into_the_source_is_a_candidate_with_patchable(
    session: Session, technique: Any
) -> None:
    written, hidden = technique(settings=(1, 2)), technique()
    written.edit = lambda observation, setting: [Edit("written", "argument", None)] if setting == 2 else []
    candidates, (refused,) = propose(session, TuneOptions(is_patchable=True), {"written": written, "hidden": hidden})
    assert [(one.technique, one.settings) for one in candidates] == [("written", (2,))]
    assert refused.technique == "hidden" and "slipstream patch cannot write it" in refused.reason
