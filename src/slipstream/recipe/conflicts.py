"""Conflicts between techniques that claim the same resource.

Conflicts are collected from the cards of the techniques before anything starts. A recipe never holds both sides of a
conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

import msgspec

from slipstream.records import Recipe
from slipstream.techniques._core.card import Card


class Conflict(msgspec.Struct, frozen=True):
    left: str
    right: str
    claim: str  # the resource that both claim, for example "the model's call"

    def __str__(self) -> str:
        return f"{self.left} and {self.right} both claim {self.claim}"


def find_conflicts(cards: Mapping[str, Card]) -> list[Conflict]:
    return [
        Conflict(left, right, claim)
        for left, right in combinations(cards, 2)
        for claim in cards[left].claims
        if claim in cards[right].claims
    ]


def conflict_with(technique: str, recipe: Recipe, conflicts: Iterable[Conflict]) -> Conflict | None:
    """Returns the first conflict between the technique and the recipe, or None."""
    taken = {choice.technique for choice in recipe.choices}
    for conflict in conflicts:
        sides = {conflict.left, conflict.right}
        if technique in sides and sides & taken - {technique}:
            return conflict
    return None
