"""Combines the winners of the single races, best first. Each must add a gain to those kept before it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.numbers import times
from slipstream.recipe.conflicts import conflict_with
from slipstream.records import Decision, Numerics, Recipe, Speed, Verdict
from slipstream.tuning.budget import TOTAL_SHARE
from slipstream.tuning.candidates import Candidate
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.single_races import Winner
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RaceError
from slipstream.tuning.verdicts import describe


def combine(state: TuningState, winners: Sequence[Winner]) -> Recipe:
    """`winners` are sorted by gain, the largest first."""
    state.recipe = state.on_ground(winners[0].choice)
    return _extend(state, state.recipe, winners[0].speed, winners[1:])


def _extend(state: TuningState, recipe: Recipe, speed: Speed | None, winners: Sequence[Winner]) -> Recipe:
    for at, winner in enumerate(winners):
        conflict = conflict_with(winner.choice.technique, recipe, state.conflicts)
        if conflict is not None:
            is_less = speed is not None and winner.speed.ratio <= speed.ratio
            _drop(state, winner, recipe, f"{conflict}; the other one {'gains more' if is_less else 'was kept first'}")
            continue
        num_after = len(winners) - 1 - at
        comparison = state.comparison(state.trials(recipe.plus(winner.choice)), state.trials(recipe), base=state.base)
        verdict = _add(state, comparison, winner, num_after, speed)
        if verdict.decision == "kept":
            recipe, speed = verdict.recipe, verdict.speed or speed
            state.recipe = recipe
    return recipe


def _add(
    state: TuningState, comparison: Comparison, candidate: Winner | Candidate, num_after: int, through: Speed | None
) -> Verdict:
    _race(state, comparison, num_after)
    recipe = comparison.anchor.recipe
    choice = candidate.choice if isinstance(candidate, Winner) else candidate.first
    verdict = describe(state, comparison, choice, state.pool.record(comparison.trials), through)
    decision, reason = _weigh(comparison, recipe, state.order.margin if isinstance(candidate, Winner) else None)
    numerics = None
    if decision == "kept":
        numerics = _check_numerics(state, comparison)
        if numerics.is_sound is not True:
            decision = "unsure" if numerics.is_sound is None else "rejected"
            reason = f"not sound beside {recipe}: {numerics.reason}"
    verdict = msgspec.structs.replace(verdict, decision=decision, reason=reason, numerics=numerics, kind="cumulative")
    state.decide(verdict)
    if decision != "kept":
        state.pool.leave(comparison.trials)
        if isinstance(candidate, Winner):
            state.revise(choice, decision, f"{times(candidate.speed)} alone, but {reason}")
    return verdict


def _race(state: TuningState, comparison: Comparison, num_after: int) -> None:
    """Races one combination. Better candidates come first and get the time, except what the later ones need at
    least."""
    budget = state.budget
    need_s = state.scheduler.need_s()
    deadline_s = max(budget.moment_s(TOTAL_SHARE) - num_after * need_s, budget.now_s() + 1.01 * need_s)
    deadline_s = min(deadline_s, budget.moment_s(TOTAL_SHARE))
    try:
        state.scheduler.race([comparison], lambda: deadline_s, lambda comparison: None, state.companions())
    except RaceError as error:
        comparison.abandon(str(error))


def _weigh(comparison: Comparison, recipe: Recipe, margin: float | None) -> tuple[Decision, str]:
    """Decides on one addition. A technique that won alone and is undecided here is kept if its estimated gain exceeds
    the margin, because the whole recipe is raced at the end. `margin` is None if the technique has not won alone."""
    speed = comparison.speed()
    if comparison.outcome == "failed":
        return "failed", f"beside {recipe} it failed: {comparison.failure}"
    if comparison.outcome in ("slower", "declined", "no_effect"):
        return "rejected", f"beside {recipe}: {comparison.failure}"
    if comparison.outcome == "undecided" and comparison.failure:
        return "unsure", f"the race beside {recipe} ended early: {comparison.failure}"
    if speed is None:
        return "unsure", f"there was no time to race it beside {recipe}; a longer --budget helps"
    if comparison.outcome == "faster":
        return "kept", f"adds {times(speed)} beside {recipe}"
    if comparison.outcome == "not_faster":
        return "rejected", f"adds nothing beside {recipe}: at most {speed.high:.2f}x"
    if margin is not None and speed.ratio > 1.0 + margin:
        return "kept", f"seems to add {times(speed)} beside {recipe}, not decided"
    return "unsure", f"what it adds beside {recipe} was not decided: {times(speed)}"


def _check_numerics(state: TuningState, comparison: Comparison) -> Numerics:
    """Checks the loss curves of the timed trials, whose random numbers may differ. Each technique was proved alone."""
    state.pool.release(comparison.trials)
    record = state.pool.record(comparison.trials)
    return state.numerics_check.full_check(state.claim(comparison.trials.recipe), record, comparison.trials.num_steps)


def _drop(state: TuningState, winner: Winner, recipe: Recipe, reason: str) -> None:
    verdict = Verdict(
        winner.choice.technique, winner.choice.setting, "rejected", reason, recipe=recipe, kind="cumulative"
    )
    state.decide(verdict)
    state.revise(winner.choice, "rejected", f"{times(winner.speed)} alone, but {reason}")
