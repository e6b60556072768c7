"""Applies a trial's recipe. This happens once in the script's process, when the script has imported torch."""

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
    """Applies all techniques of a recipe. A technique that fails is declined, and the others stay applied. The order of
    the recipe does not matter, because the cards define the nesting of wrappers."""
    from slipstream.techniques._core.context import (
        ApplyContext,  # Imported late, because it needs torch. The script has imported torch by now.
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
