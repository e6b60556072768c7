"""A recipe as edits of the source.

The edits come from a trial that ran with the recipe. If the trial recorded none for a technique, the technique derives
them from the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from slipstream.recipe.conflicts import conflict_with, find_conflicts
from slipstream.records import Choice, Edit, Recipe, Session, Speed
from slipstream.techniques._core.catalogue import Technique, catalogue, import_edits_of
from slipstream.techniques._core.observation import Observation


def edits_of(
    session: Session, recipe: Recipe, made: Sequence[Edit] = (), techniques: Mapping[str, Technique] | None = None
) -> list[Edit]:
    """Returns the edits for the recipe. `made` are the edits that a trial with this recipe recorded."""
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
    """Whether `slipstream patch` can write the technique into the source, as far as the session tells. The source
    itself is not read."""
    edits = _proposed(observation, choice, technique)
    return bool(edits) and all(edit.kind != "by_hand" for edit in edits)


def _proposed(observation: Observation, choice: Choice, technique: Technique) -> Sequence[Edit]:
    try:
        return technique.edit(observation, choice.setting)
    except Exception as fault:  # a technique that fails on this script must not end the tuning
        reason = f"its edit could not be made ({type(fault).__name__}: {fault})"
        return [Edit(choice.technique, "by_hand", None, reason=reason)]


def _unwritten(ident: str, technique: Technique, observation: Observation) -> list[Edit]:
    """Returns an edit that tells the user why this technique does not apply to the script. Returns no edit if the
    technique applies, or if the script already does what the technique does.
    """
    answer = technique.applies(observation)
    if answer.is_yes or answer.is_already_so:
        return []
    return [Edit(ident, "by_hand", None, reason=f"there is nothing to write: {answer.reason}")]


def edits_in(session: Session, recipe: Recipe, may_import: bool = False) -> list[Edit]:
    """Returns the edits for the recipe. Edits that a trial of the tuning recorded take precedence. With `may_import`,
    edits that import slipstream replace edits that the user would have to make."""
    made: list[Edit] = []
    observation, tuning = Observation(session), session.tuning
    if may_import:
        for choice in recipe.choices:
            made += _importing(observation, choice)
    if tuning is not None:
        for raced, edits in ((tuning.recipe, tuning.edits), (tuning.writable, tuning.writable_edits)):
            names = {choice.technique for choice in recipe.choices if choice in raced.choices}
            names -= {edit.technique for edit in made}
            made += [edit for edit in edits if edit.technique in names]
    return edits_of(session, recipe, made)


def _importing(observation: Observation, choice: Choice) -> list[Edit]:
    """Returns the edits that import slipstream, if the technique has no other edits that can be written."""
    technique = catalogue()[choice.technique]
    if is_writable(observation, choice, technique):
        return []
    return import_edits_of(technique, observation, choice.setting)


class Written(msgspec.Struct, frozen=True):
    """What `slipstream patch` writes of a recipe."""

    recipe: Recipe
    lost: Recipe  # the choices that cannot be written
    by_hand: Recipe  # the lost choices that conflict with no choice in `recipe`
    total: Speed | None = None  # the speed of the whole recipe in the tuning
    speed: Speed | None = None  # the speed of `recipe` in the tuning


def written_of(session: Session, recipe: Recipe, may_import: bool = False) -> Written:
    """Returns what `slipstream patch` writes of the recipe. If a choice cannot be written, it writes the best writable
    recipe that the tuning measured. If there is no such measurement, or if an edit imports slipstream, the choices that
    cannot be written are left out."""
    observation, known, tuning = Observation(session), catalogue(), session.tuning
    is_kept = tuning is not None and set(recipe.choices) == set(tuning.recipe.choices)
    total = tuning.total if tuning is not None and is_kept else None
    imported = [choice for choice in recipe.choices if may_import and _importing(observation, choice)]
    lost = [choice for choice in recipe.choices if choice not in imported and _is_lost(observation, choice)]
    if not lost:
        return Written(recipe, Recipe(), Recipe(), total, total)
    rest, speed = Recipe(tuple(choice for choice in recipe.choices if choice not in lost)), None
    if tuning is not None and is_kept and tuning.writable.choices and not imported:
        rest, speed = tuning.writable, tuning.writable_speed
    conflicts = find_conflicts({one.technique: known[one.technique].CARD for one in (*recipe.choices, *rest.choices)})
    by_hand = [choice for choice in lost if conflict_with(choice.technique, rest, conflicts) is None]
    return Written(rest, Recipe(tuple(lost)), Recipe(tuple(by_hand)), total, speed)


def _is_lost(observation: Observation, choice: Choice) -> bool:
    """Whether the technique needs an edit that cannot be written."""
    technique = catalogue()[choice.technique]
    edits = technique.edit(observation, choice.setting)
    return bool(edits) and not is_writable(observation, choice, technique)


def can_import(session: Session, recipe: Recipe) -> Recipe:
    """Returns the choices that can be written only with `slipstream.DataLoader`."""
    observation = Observation(session)
    return Recipe(tuple(choice for choice in recipe.choices if _importing(observation, choice)))
