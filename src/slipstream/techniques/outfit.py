"""A rider's recipe put in place: called once in the riding process, when the script has imported torch."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.records import Recipe
from slipstream.seams.patch import Patches
from slipstream.techniques.catalogue import technique
from slipstream.techniques.rig import Rig


def fit(
    recipe: Recipe, patches: Patches, complain: Callable[[str, BaseException], None], is_proof: bool = False
) -> Rig:
    """A technique that cannot be put in place is declined; the others stand."""
    rig = Rig(patches, complain, is_proof)
    for choice in recipe.choices:
        rig.technique = choice.technique
        try:
            technique(choice.technique).apply(rig, choice.setting)
        except Exception as fault:
            rig.decline(f"{type(fault).__name__}: {fault}")
            complain(f"technique {choice.technique}", fault)
    return rig
