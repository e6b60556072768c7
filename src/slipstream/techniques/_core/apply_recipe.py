"""A rider's recipe put in place: called once in the riding process, when the script has imported torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slipstream.records import Recipe
from slipstream.seams.patching import Patches
from slipstream.techniques._core.catalogue import technique

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext


def apply_recipe(
    recipe: Recipe, patches: Patches, complain: Callable[[str, BaseException], None], is_proof: bool = False
) -> ApplyContext:
    """A technique that cannot be put in place is declined; the others stand. The order of the recipe does not matter:
    which wrapper stands inside which is said by the cards."""
    from slipstream.techniques._core.context import (
        ApplyContext,  # with torch, which the script has imported by now and not before
    )

    context = ApplyContext(patches, complain, is_proof)
    for choice in sorted(recipe.choices, key=lambda choice: technique(choice.technique).CARD.nesting):
        own = context.named(choice.technique)
        try:
            technique(choice.technique).apply(own, choice.setting)
        except Exception as fault:
            own.decline(f"{type(fault).__name__}: {fault}")
            complain(f"technique {choice.technique}", fault)
    return context
