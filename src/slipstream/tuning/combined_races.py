"""Winners together, best first: each must add something beside those kept before it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.recipe.conflicts import conflict_with
from slipstream.records import Decision, Numerics, Recipe, Speed, Verdict
from slipstream.report.text.numbers import times
from slipstream.tuning.budget import TOTAL_SHARE
from slipstream.tuning.candidates import Candidate
from slipstream.tuning.comparison import Contest
from slipstream.tuning.single_races import Winner
from slipstream.tuning.state import Meeting
from slipstream.tuning.trials import RaceError
from slipstream.tuning.verdicts import describe


def combine(meeting: Meeting, winners: Sequence[Winner]) -> Recipe:
    """Winners come best first."""
    meeting.recipe = meeting.on_ground(winners[0].choice)
    return _extend(meeting, meeting.recipe, winners[0].speed, winners[1:])


def _extend(meeting: Meeting, recipe: Recipe, speed: Speed | None, winners: Sequence[Winner]) -> Recipe:
    for at, winner in enumerate(winners):
        conflict = conflict_with(winner.choice.technique, recipe, meeting.conflicts)
        if conflict is not None:
            is_less = speed is not None and winner.speed.ratio <= speed.ratio
            _drop(meeting, winner, recipe, f"{conflict}; the other one {'gains more' if is_less else 'was kept first'}")
            continue
        num_after = len(winners) - 1 - at
        contest = meeting.contest(meeting.seat(recipe.plus(winner.choice)), meeting.seat(recipe), base=meeting.base)
        verdict = _add(meeting, contest, winner, num_after, speed)
        if verdict.decision == "kept":
            recipe, speed = verdict.recipe, verdict.speed or speed
            meeting.recipe = recipe
    return recipe


def _add(meeting: Meeting, contest: Contest, who: Winner | Candidate, num_after: int, through: Speed | None) -> Verdict:
    _race(meeting, contest, num_after)
    recipe = contest.anchor.recipe
    choice = who.choice if isinstance(who, Winner) else who.first
    verdict = describe(meeting, contest, choice, meeting.paddock.record(contest.seat), through)
    decision, reason = _weigh(contest, recipe, meeting.order.margin if isinstance(who, Winner) else None)
    numerics = None
    if decision == "kept":
        numerics = _hear(meeting, contest)
        if numerics.is_sound is not True:
            decision = "unsure" if numerics.is_sound is None else "rejected"
            reason = f"not sound beside {recipe}: {numerics.reason}"
    verdict = msgspec.structs.replace(verdict, decision=decision, reason=reason, numerics=numerics, kind="cumulative")
    meeting.decide(verdict)
    if decision != "kept":
        meeting.paddock.leave(contest.seat)
        if isinstance(who, Winner):
            meeting.revise(choice, decision, f"{times(who.speed)} alone, but {reason}")
    return verdict


def _race(meeting: Meeting, contest: Contest, num_after: int) -> None:
    """The better one comes first and has the time, save what those after it need at the least."""
    budget = meeting.budget
    need_s = meeting.heat.need_s()
    deadline_s = max(budget.moment_s(TOTAL_SHARE) - num_after * need_s, budget.now_s() + 1.01 * need_s)
    deadline_s = min(deadline_s, budget.moment_s(TOTAL_SHARE))
    try:
        meeting.heat.race([contest], lambda: deadline_s, lambda contest: None, meeting.companions())
    except RaceError as error:
        contest.abandon(str(error))


def _weigh(contest: Contest, recipe: Recipe, margin: float | None) -> tuple[Decision, str]:
    """What has won alone and is not decided beside the others stays if it looks like a gain of more than the margin,
    for the whole recipe is raced in the end. None: it has not won alone."""
    speed = contest.speed()
    if contest.outcome == "failed":
        return "failed", f"beside {recipe} it failed: {contest.failure}"
    if contest.outcome in ("slower", "declined", "no_effect"):
        return "rejected", f"beside {recipe}: {contest.failure}"
    if contest.outcome == "undecided" and contest.failure:
        return "unsure", f"beside {recipe} the race was broken off: {contest.failure}"
    if speed is None:
        return "unsure", f"there was no time to race it beside {recipe}; --budget gives it more"
    if contest.outcome == "faster":
        return "kept", f"adds {times(speed)} beside {recipe}"
    if contest.outcome == "not_faster":
        return "rejected", f"adds nothing beside {recipe}: at most {speed.high:.2f}x"
    if margin is not None and speed.ratio > 1.0 + margin:
        return "kept", f"seems to add {times(speed)} beside {recipe}, not decided"
    return "unsure", f"what it adds beside {recipe} was not decided: {times(speed)}"


def _hear(meeting: Meeting, contest: Contest) -> Numerics:
    """Each technique was proved alone: here the curves of the timed riders, which may have drawn other numbers."""
    meeting.paddock.release(contest.seat)
    record = meeting.paddock.record(contest.seat)
    return meeting.jury.hear(meeting.claim(contest.seat.recipe), record, contest.seat.num_steps)


def _drop(meeting: Meeting, winner: Winner, recipe: Recipe, reason: str) -> None:
    verdict = Verdict(
        winner.choice.technique, winner.choice.setting, "rejected", reason, recipe=recipe, kind="cumulative"
    )
    meeting.decide(verdict)
    meeting.revise(winner.choice, "rejected", f"{times(winner.speed)} alone, but {reason}")
