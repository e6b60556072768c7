"""Finds what makes the script's own batch fit.

Every memory technique that applies and that the options allow runs under the limit: first alone and, if no technique is
enough, in a few pairs. Of the recipes that run, the recipe that costs the least time is chosen.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from slipstream.fit.attempts import FitAttempts, FitRun
from slipstream.fit.options import FitOptions
from slipstream.recipe.conflicts import conflict_with, find_conflicts
from slipstream.records import Choice, FitAttempt, Recipe, Setting, TrialRecord
from slipstream.techniques._core.catalogue import Technique
from slipstream.techniques._core.observation import Observation
from slipstream.tuning.candidates import is_looser

_MOST_SETTINGS: Final = 8
_MOST_PAIRS: Final = 4
# The largest relative difference of a loss in the first steps that a technique may cause. Every trial records these
# losses, so the check takes no time.
_SAME: Final = 1e-2

Known = Mapping[str, Technique]
# Chooses the next setting, given the settings that were tried and whether each of them ran. None: no setting is left.
Next = Callable[[Mapping[Setting, bool]], "Setting | None"]


class MemoryGap(msgspec.Struct, frozen=True):
    """The result of `make_room`."""

    trials: list[FitAttempt] = []
    cheapest: FitAttempt | None = None
    notes: list[str] = []  # which techniques were not tried, and why


def make_room(
    trials: FitAttempts, own_batch: int, observation: Observation, known: Known, order: FitOptions
) -> MemoryGap:
    notes: list[str] = []
    tried: dict[str, list[FitAttempt]] = {}
    inert: set[str] = set()  # techniques without effect on this script, which are not tried in pairs
    for ident, next_setting in _candidates(observation, known, order, notes):
        tried[ident] = list(_try_settings(trials, own_batch, ident, next_setting, notes, inert))
    made = [trial for each in tried.values() for trial in each]
    active = {ident: each for ident, each in tried.items() if ident not in inert}
    if not any(trial.outcome == "ran" for trial in made):
        made += _try_pairs(trials, own_batch, active, known)
    if made and not any(trial.outcome == "ran" for trial in made):
        _weigh_unheld(trials, own_batch, active)
    ran = [trial for trial in made if trial.outcome == "ran"]
    return MemoryGap(made, min(ran, key=_cost, default=None), notes)


def _candidates(
    observation: Observation, known: Known, order: FitOptions, notes: list[str]
) -> Iterator[tuple[str, Next]]:
    for ident, technique in known.items():
        card = technique.CARD
        is_named = ident in order.only
        if card.purpose != "memory" or (order.only and not is_named) or (card.is_opt_in and not is_named):
            continue
        if ident in order.without:
            continue
        if is_looser(card.numerics, order.allow):
            notes.append(f"{ident} was not tried: its numerics are {card.numerics!r}; --allow {card.numerics} tries it")
            continue
        answer = technique.applies(observation)
        if not answer.is_yes:
            notes.append(f"{ident} was not tried: {answer.reason}")
            continue
        ladder: Sequence[Setting] = getattr(technique, "LADDER", ())
        listed = _settings(technique, observation)
        yield ident, functools.partial(_climb, ladder) if ladder else functools.partial(_go_on, listed)


def _go_on(settings: Sequence[Setting], ran: Mapping[Setting, bool]) -> Setting | None:
    """Returns the next setting in the list, or None.

    Settings that are names are all tried. Settings that are numbers save more and cost more from one to the next, so
    the first that runs is the cheapest, and the rest is not tried.
    """
    if any(_is_number(setting) and is_enough for setting, is_enough in ran.items()):
        return None
    return next((setting for setting in settings if setting not in ran), None)


def _climb(ladder: Sequence[Setting], ran: Mapping[Setting, bool]) -> Setting | None:
    """Returns the next setting of a ladder, or None. A ladder goes from the weakest and cheapest setting to the
    strongest.

    The strongest setting is tried first. If it is not enough, no other setting is enough. If it is enough, bisection
    finds the weakest setting that is enough.
    """
    weak = max((at for at, setting in enumerate(ladder) if ran.get(setting) is False), default=-1)
    enough = min((at for at, setting in enumerate(ladder) if ran.get(setting)), default=len(ladder))
    if not ran:
        return ladder[-1]
    return ladder[(weak + enough) // 2] if enough < len(ladder) and enough - weak > 1 else None


def _settings(technique: Technique, observation: Observation) -> list[Setting]:
    """Returns the settings that the technique proposes. If the technique allows only a few settings, the others follow.
    These are stronger."""
    proposed = list(technique.settings(observation))
    allowed: Sequence[Setting] = getattr(technique, "VALUES", ())
    return proposed + ([one for one in allowed if one not in proposed] if len(allowed) <= _MOST_SETTINGS else [])


def _try_settings(
    trials: FitAttempts, own_batch: int, ident: str, next_setting: Next, notes: list[str], inert: set[str]
) -> Iterator[FitAttempt]:
    ran: dict[Setting, bool] = {}
    while (setting := next_setting(ran)) is not None:
        if not trials.has_time:
            notes.append(f"There was no time to try {Choice(ident, setting)}.")
            return
        trial, record = _try(trials, FitRun(own_batch, Recipe((Choice(ident, setting),))))
        yield trial
        if why := _why_no_effect(ident, record):
            notes.append(f"{ident} had no effect: {why}")
            inert.add(ident)
            return  # another setting would have no effect either
        ran[setting] = trial.outcome == "ran"


def _is_number(setting: Setting) -> bool:
    return isinstance(setting, int) and not isinstance(setting, bool)


def _try(trials: FitAttempts, fit_run: FitRun) -> tuple[FitAttempt, TrialRecord]:
    trial, record = trials.race(fit_run) if trials.has_anchor else _alone(trials, fit_run)
    apart = trials.losses_apart(record)
    if trial.outcome == "ran" and apart is not None and apart > _SAME:
        reason = f"it runs, but its losses differ by {apart:.1%} from those without it"
        trial = msgspec.structs.replace(trial, outcome="failed", reason=reason)
        trials.made[-1] = trial
    return trial, record


def _alone(trials: FitAttempts, fit_run: FitRun) -> tuple[FitAttempt, TrialRecord]:
    """Tries a run without a race. There is no anchor if the script as it is does not run even without a limit, or ends
    too early to be raced."""
    from slipstream.records import TrialSpec

    trial = trials.run(fit_run)
    spec = TrialSpec(0, "fit", fit_run.whole)
    return trial, TrialRecord(spec, changes=trial.changes, declined=trial.declined)


def _why_no_effect(ident: str, record: TrialRecord) -> str:
    """Returns why the technique declined, in its own words. Returns "" if it changed something or did not decline."""
    if any(change.technique == ident for change in record.changes):
        return ""
    return next((note.text for note in record.declined if note.technique == ident), "")


def _try_pairs(
    trials: FitAttempts, own_batch: int, tried: Mapping[str, Sequence[FitAttempt]], known: Known
) -> list[FitAttempt]:
    """Tries up to _MOST_PAIRS pairs of techniques that have no conflict, each with the setting from `_strongest`."""
    conflicts = find_conflicts({ident: known[ident].CARD for ident in tried})
    strongest = {ident: _strongest([one.recipe.choices[0] for one in each]) for ident, each in tried.items() if each}
    pairs = [
        Recipe((strongest[left], strongest[right]))
        for left, right in itertools.combinations(strongest, 2)
        if conflict_with(right, Recipe((strongest[left],)), conflicts) is None
    ]
    return [_try(trials, FitRun(own_batch, pair))[0] for pair in pairs[:_MOST_PAIRS] if trials.has_time]


def _weigh_unheld(trials: FitAttempts, own_batch: int, tried: Mapping[str, Sequence[FitAttempt]]) -> None:
    """Measures how much memory the script needs with each technique, without a limit. So the user learns which limit
    would be enough."""
    for each in tried.values():
        if each and trials.has_time:
            trials.run(FitRun(own_batch, Recipe((_strongest([one.recipe.choices[0] for one in each]),)), is_held=False))


def _strongest(choices: Sequence[Choice]) -> Choice:
    """Returns the last setting if settings are numbers. If they are names, returns the first, which the technique
    prefers."""
    return choices[-1 if _is_number(choices[0].setting) else 0]


def _cost(trial: FitAttempt) -> float:
    """Returns the relative time for a sample. For attempts that were not raced, the result is larger than for all
    others."""
    if trial.rate is not None:
        return 1.0 / trial.rate.ratio
    return 1e3 + (trial.step_ms or 1e9)
