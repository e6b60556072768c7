"""The whole recipe against the base, with fresh riders; what does not hold then is not kept."""

from __future__ import annotations

import msgspec

from slipstream.records import Choice, Decision, Numerics, Recipe
from slipstream.tune.contest import Contest
from slipstream.tune.meeting import Meeting
from slipstream.tune.ruling import describe, times
from slipstream.tune.seat import Seat

MIN_ROUNDS = 12  # fewer cannot speak against what the techniques showed one by one


def race_total(meeting: Meeting, recipe: Recipe) -> tuple[Contest, Recipe]:
    """The contest, and the recipe if it held."""
    seat = _fresh_seat(meeting, recipe)
    numerics = _prove(meeting, recipe)
    contest = meeting.contest(seat, meeting.base, goal="measure")
    meeting.heat.race([contest, meeting.twin_contest()], lambda: meeting.budget.moment_s(0.0), lambda contest: None)
    record = meeting.paddock.record(seat)
    numerics = numerics or meeting.glance(seat, record)
    decision, reason = _weigh(contest, numerics, meeting.order.alpha)
    verdict = msgspec.structs.replace(
        describe(meeting, contest, Choice("recipe"), record),
        decision=decision,
        reason=reason,
        numerics=numerics,
        kind="total",
    )
    meeting.decide(verdict)
    if decision == "kept":
        return contest, recipe
    for choice in recipe.choices:
        meeting.revise(choice, decision, f"won its own race, but the whole recipe {reason}")
    return contest, Recipe()


def _fresh_seat(meeting: Meeting, recipe: Recipe) -> Seat:
    """Another process than the one that won: whatever luck that had, it kept. Where a start takes a tenth of the time
    that is left, the old one rides on."""
    known = meeting.seat(recipe)
    startup_s = meeting.paddock.record(known).startup_s
    if known.rider is not None and startup_s > 0.1 * meeting.budget.left_s():
        return known
    meeting.paddock.leave(known)
    return Seat("candidate", recipe)


def _prove(meeting: Meeting, recipe: Recipe) -> Numerics | None:
    """A single technique was proved when it won; several that need it are proved together."""
    claim = meeting.claim(recipe)
    if len(recipe.choices) < 2 or not claim.needs_proof:
        return None
    return meeting.jury.prove(claim, recipe, meeting.seat(recipe).num_steps)


def _weigh(contest: Contest, numerics: Numerics | None, alpha: float) -> tuple[Decision, str]:
    if contest.outcome in ("failed", "slower", "declined", "no_effect"):
        return "failed", f"failed at the end: {contest.failure}"
    if numerics is not None and numerics.is_sound is False:
        return "rejected", f"is not sound: {numerics.reason}"
    speed = contest.speed()
    if speed is None:
        return "kept", "was not raced: the time was used up"
    if contest.comparison.is_not_faster(0.0, alpha):
        return "rejected", f"was no faster at the end: {times(speed)}"
    if speed.num_rounds >= MIN_ROUNDS and not contest.comparison.is_faster(0.0, alpha):
        return "unsure", f"was not faster beyond doubt at the end: {times(speed)}"
    return "kept", f"{times(speed)} against the script as it is"
