"""Selects the techniques to race: all techniques that apply and that the options allow, the most promising first. The
others get a verdict with the reason, except for those that `--only` does not name. An arm is a technique with one
setting."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from slipstream.recipe.source_edits import is_writable
from slipstream.records import NUMERICS, Choice, NumericsClass, Recipe, Session, Setting, Verdict
from slipstream.techniques._core.card import Answer, Card
from slipstream.techniques._core.catalogue import Technique
from slipstream.techniques._core.observation import Observation
from slipstream.tuning.options import TuneOptions

MOST_SETTINGS = 2  # settings of one technique in one pass: the best guess and its neighbour
CONTROL = "nothing"  # the technique of the A/A control, which is not a candidate


class Candidate(msgspec.Struct, frozen=True):
    technique: str
    card: Card
    settings: tuple[Setting, ...]  # best guess first
    gain: float = 1.0  # predicted by the findings
    is_keepable: bool = True  # False: the gain is timed and reported, but the technique is not kept

    @property
    def first(self) -> Choice:
        return Choice(self.technique, self.settings[0])

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(setting, int) and not isinstance(setting, bool) for setting in self.settings)


class Arm(msgspec.Struct, frozen=True):
    candidate: Candidate
    choice: Choice
    recipe: Recipe  # the recipe so far with this choice


def propose(
    session: Session, order: TuneOptions, known: Mapping[str, Technique]
) -> tuple[list[Candidate], list[Verdict]]:
    """Returns the candidates, the most promising first, and a verdict for each technique that cannot be a candidate.
    Techniques that `--only` does not name are in neither list. Raises ValueError if an option names an unknown
    technique."""
    offered = {ident: technique for ident, technique in known.items() if ident != CONTROL}
    _refuse_unknown("--only", order.only, offered)
    _refuse_unknown("--without", order.without, offered)
    observation = Observation(session)
    candidates: list[Candidate] = []
    refused: list[Verdict] = []
    for ident, technique in offered.items():
        if order.only and ident not in order.only:
            continue
        answer = _consider(ident, technique, observation, order)
        if isinstance(answer, Verdict):
            refused.append(answer)
        else:
            candidates.append(answer)
    # The best technique for every cause comes before the second best for any cause, because techniques for one cause
    # compete for the same milliseconds. The sort is stable. Techniques whose numerics need a separate trial (compile)
    # cost most, so they come last among techniques of equal rank and gain.
    rank = observation.rank_of
    candidates.sort(key=lambda one: (rank(one.technique, one.card.causes), -one.gain, one.card.needs_proof))
    return candidates, refused


def latecomers(
    observation: Observation, order: TuneOptions, known: Mapping[str, Technique], recipe: Recipe, out: Collection[str]
) -> list[Candidate]:
    """Returns the techniques that apply together with this recipe, among those that define `applies_with(observation,
    recipe)`. Techniques in `recipe` and in `out` are not asked. A technique may also define `settings_with`, if the
    recipe changes which settings are worth trying."""
    found = []
    for ident, technique in known.items():
        is_asked = ident not in out and recipe.setting_of(ident) is None and (not order.only or ident in order.only)
        if is_asked and hasattr(technique, "applies_with"):
            answer = _consider(ident, technique, observation, order, recipe)
            if isinstance(answer, Candidate) and answer.is_keepable:
                found.append(answer)
    return found


def settings_to_race(candidate: Candidate, seen: Mapping[Setting, float]) -> list[Setting]:
    """Returns the settings of a technique that race in the next pass. `seen` contains the gains of the settings that
    have raced. In the first pass the best guesses race, or only the best guess if the technique is slow to start. Later
    the best setting so far races again, together with an untried neighbour if there is one."""
    if not seen:
        return list(candidate.settings[: 1 if candidate.card.is_slow_to_start else MOST_SETTINGS])
    best = max(seen, key=lambda setting: seen[setting])
    return [best, *untried_neighbours(candidate, best, seen)][:MOST_SETTINGS]


def untried_neighbours(candidate: Candidate, setting: Setting, tried: Collection[Setting]) -> list[Setting]:
    """Returns the neighbours of a setting that were not tried. For numbers these are the next larger and the next
    smaller setting. For other settings it is the first untried setting in the candidate's list."""
    if setting not in candidate.settings:
        return []
    if candidate.is_numeric:
        ordered = sorted(candidate.settings, key=int)
        at = ordered.index(setting)
        beside = [*ordered[at + 1 : at + 2], *ordered[max(0, at - 1) : at]]
        return [one for one in beside if one not in tried]
    return [one for one in candidate.settings if one not in tried][:1]


def _refuse_unknown(option: str, named: Sequence[str], offered: Mapping[str, Technique]) -> None:
    for ident in named:
        if ident not in offered:
            raise ValueError(f"{option} {ident}: no technique is called that; there are: {', '.join(offered)}")


def _consider(
    ident: str, technique: Technique, observation: Observation, order: TuneOptions, beside: Recipe | None = None
) -> Candidate | Verdict:
    card = technique.CARD
    if ident in order.without:
        return _refused(ident, "left out by --without")
    if card.purpose == "fit":
        return _refused(
            ident,
            "changes how much work a step does, so steps cannot be compared: tune --fit compares samples per second",
        )
    if card.purpose == "memory" and ident not in order.only:
        return _refused(ident, f"saves memory and costs time: --only {ident} tries it")
    if is_looser(card.numerics, order.allow):
        reason = f"its numerics are {card.numerics!r}, looser than --allow {order.allow}"
        return _refused(ident, f"{reason}; --allow {card.numerics} would try it")
    try:
        asked = technique.applies(observation) if beside is None else _applies_with(technique, observation, beside)
        settings = _settings(technique, observation, beside) if asked.is_yes else ()
        gain = observation.gain_of(card.causes)
    except Exception as fault:  # a technique that fails on this script must not affect the others
        reason = f"could not tell whether it applies: {type(fault).__name__}: {fault}"
        return Verdict(ident, True, "failed", reason, cause="failed")
    if not asked.is_yes:
        return _refused(ident, asked.reason)
    if order.is_patchable:
        settings = tuple(one for one in settings if is_writable(observation, Choice(ident, one), technique))
        if not settings:
            return _refused(ident, "slipstream patch cannot write it into this source")
    if not settings:
        return _refused(ident, "no setting is worth trying here")
    return Candidate(ident, card, settings, gain, not card.is_opt_in or ident in order.only)


def _applies_with(technique: Technique, observation: Observation, recipe: Recipe) -> Answer:
    answer = technique.applies_with(observation, recipe)  # type: ignore[attr-defined]
    assert isinstance(answer, Answer)
    return answer


def _settings(technique: Technique, observation: Observation, beside: Recipe | None) -> tuple[Setting, ...]:
    if beside is not None and hasattr(technique, "settings_with"):
        return tuple(technique.settings_with(observation, beside))
    return tuple(technique.settings(observation))


def _refused(ident: str, reason: str) -> Verdict:
    return Verdict(ident, True, "not_applicable", reason, cause="not_applicable")


def is_looser(numerics: NumericsClass, allowed: NumericsClass) -> bool:
    return NUMERICS.index(numerics) > NUMERICS.index(allowed)


def loosest(classes: Sequence[NumericsClass]) -> NumericsClass:
    """Returns the numerics class of a recipe, which is the class of its loosest technique."""
    return max(classes, key=NUMERICS.index, default="identical")
