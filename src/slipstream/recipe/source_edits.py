"""A recipe as edits of the source.

The edits come from a trial that ran with the recipe or, without such a trial, from what each technique derives from
the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.records import Choice, Edit, Recipe, Session
from slipstream.techniques._core.catalogue import Technique, catalogue
from slipstream.techniques._core.observation import Observation


def edits_of(
    session: Session, recipe: Recipe, made: Sequence[Edit] = (), techniques: Mapping[str, Technique] | None = None
) -> list[Edit]:
    """The edits for the recipe. `made` are the edits that a trial with this recipe recorded."""
    observation, known = Observation(session), techniques or catalogue()
    edits: list[Edit] = []
    for choice in recipe.choices:
        own = [edit for edit in made if edit.technique == choice.technique]
        technique = known[choice.technique]
        edits += (
            own or _proposed(observation, choice, technique) or _unwritten(choice.technique, technique, observation)
        )
    return edits


def is_writable(observation: Observation, choice: Choice, technique: Technique) -> bool:
    """Whether `slipstream patch` can write the technique into the source, as far as is known before it looks for the
    place."""
    edits = _proposed(observation, choice, technique)
    return bool(edits) and all(edit.kind != "by_hand" for edit in edits)


def _proposed(observation: Observation, choice: Choice, technique: Technique) -> Sequence[Edit]:
    try:
        return technique.edit(observation, choice.setting)
    except Exception as fault:  # a technique that fails on this script must not end the tuning
        reason = f"its edit could not be made: {type(fault).__name__}: {fault}"
        return [Edit(choice.technique, "by_hand", None, reason=reason)]


def _unwritten(ident: str, technique: Technique, observation: Observation) -> list[Edit]:
    """An edit that tells the user why there is nothing to write for this technique.

    Without it, a technique that does not apply to the script would be left out without a message.
    """
    answer = technique.applies(observation)
    if answer.is_yes or answer.is_already_so:
        return []
    return [Edit(ident, "by_hand", None, reason=f"there is nothing to write: {answer.reason}")]


def edits_in(session: Session, recipe: Recipe) -> list[Edit]:
    """The edits for the recipe, preferably those stored in the session, which were made where the race ran."""
    tuning = session.tuning
    raced = {choice for choice in recipe.choices if tuning and choice in tuning.recipe.choices}
    names = {choice.technique for choice in raced}
    kept = [edit for edit in tuning.edits if edit.technique in names] if tuning else []
    return edits_of(session, recipe, kept)
