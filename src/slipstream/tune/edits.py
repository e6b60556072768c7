"""A recipe as edits of the source: as a ride made them, else as each technique says from what the session saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.records import Edit, Recipe, Session
from slipstream.techniques.catalogue import Technique, catalogue
from slipstream.techniques.observation import Observation


def edits_of(
    session: Session, recipe: Recipe, made: Sequence[Edit] = (), techniques: Mapping[str, Technique] | None = None
) -> list[Edit]:
    """`made`: those of the rider that carried this recipe."""
    observation, known = Observation(session), techniques or catalogue()
    edits: list[Edit] = []
    for choice in recipe.choices:
        own = [edit for edit in made if edit.technique == choice.technique]
        edits += own or known[choice.technique].edit(observation, choice.setting)
    return edits


def edits_in(session: Session, recipe: Recipe) -> list[Edit]:
    """Those that the session itself keeps come first: they were made on the machine that raced."""
    tuning = session.tuning
    raced = {choice for choice in recipe.choices if tuning and choice in tuning.recipe.choices}
    names = {choice.technique for choice in raced}
    kept = [edit for edit in tuning.edits if edit.technique in names] if tuning else []
    return edits_of(session, recipe, kept)
