from __future__ import annotations

from slipstream.recipe.conflicts import conflict_with, find_conflicts
from slipstream.records import Choice, Recipe
from slipstream.techniques._core.card import Card
from slipstream.techniques._core.catalogue import catalogue


def _card(*claims: str) -> Card:
    return Card("A made technique", "process", (), "identical", claims=claims)


def test_a_conflict_names_both_techniques_and_the_claim() -> None:
    conflicts = find_conflicts({"a": _card("the call"), "b": _card("the call", "the loader"), "c": _card("the loader")})
    assert [str(one) for one in conflicts] == ["a and b both claim the call", "b and c both claim the loader"]
    kept = Recipe((Choice("b"),))
    assert str(conflict_with("c", kept, conflicts)) == "b and c both claim the loader"
    assert conflict_with("a", Recipe((Choice("c"),)), conflicts) is None


def test_another_setting_of_the_same_technique_is_not_a_conflict() -> None:
    conflicts = find_conflicts({"a": _card("x"), "b": _card("x")})
    assert conflict_with("a", Recipe((Choice("a", 2),)), conflicts) is None


def test_no_technique_of_the_catalogue_conflicts_with_all_others() -> None:
    cards = {ident: technique.CARD for ident, technique in catalogue().items()}
    conflicts = find_conflicts(cards)
    for ident in cards:
        assert sum(ident in (one.left, one.right) for one in conflicts) < len(cards) - 1
