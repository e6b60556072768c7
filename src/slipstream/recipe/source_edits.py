"""A recipe as edits of the source: as a ride made them, else as each technique says from what the session saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.records import Edit, Recipe, Session
from slipstream.techniques._core.catalogue import Technique, catalogue
from slipstream.techniques._core.observation import Observation


def edits_of(
    session: Session, recipe: Recipe, made: Sequence[Edit] = (), techniques: Mapping[str, Technique] | None = None
) -> list[Edit]:
    """`made`: those of the rider that carried this recipe."""
    observation, known = Observation(session), techniques or catalogue()
    edits: list[Edit] = []
    for choice in recipe.choices:
        own = [edit for edit in made if edit.technique == choice.technique]
        technique = known[choice.technique]
        edits += (
            own or technique.edit(observation, choice.setting) or _unwritten(choice.technique, technique, observation)
        )
    return edits


def _unwritten(ident: str, technique: Technique, observation: Observation) -> list[Edit]:
    """Of a recipe that this script has no use for, the reason: nothing of it is passed over in silence."""
    answer = technique.applies(observation)
    if answer.is_yes or "already" in answer.reason:
        return []
    return [Edit(ident, "by_hand", None, reason=f"there is nothing to write: {answer.reason}")]


def edits_in(session: Session, recipe: Recipe) -> list[Edit]:
    """Those that the session itself keeps come first: they were made on the machine that raced."""
    tuning = session.tuning
    raced = {choice for choice in recipe.choices if tuning and choice in tuning.recipe.choices}
    names = {choice.technique for choice in raced}
    kept = [edit for edit in tuning.edits if edit.technique in names] if tuning else []
    return edits_of(session, recipe, kept)
