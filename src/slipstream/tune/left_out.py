"""Each technique of a recipe is left out once. What was built on before it was decided must seem to be worth something
here too, against a fresh rider of the recipe: the one that it was chosen by may have been lucky."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.records import Choice, Recipe, Verdict
from slipstream.tune.budget import TOTAL_SHARE
from slipstream.tune.contest import Contest
from slipstream.tune.meeting import Meeting
from slipstream.tune.ruling import times
from slipstream.tune.seat import RaceError, Seat

PROVING = 0.5  # of alpha: the other half was for the races alone
Contests = Mapping[Choice, Contest]


def leave_out(meeting: Meeting) -> None:
    """Again and again while something goes that was only built on: beside fewer others the rest may be worth more.
    What stays without proof stands or falls with the whole recipe."""
    raced: set[Choice] = set()
    while len(meeting.recipe.choices) > 1:
        recipe, doubtful = meeting.recipe, meeting.provisional()
        contests = _race(meeting, recipe, doubtful)
        unseen = [choice for choice in doubtful if choice not in raced]
        raced |= {choice for choice, contest in contests.items() if contest.comparison.num_rounds}
        refuted = [
            choice for choice in doubtful if choice in contests and _is_refuted(meeting, choice, contests, unseen)
        ]
        gone = _least(contests, refuted) or _least(
            contests, [choice for choice, contest in contests.items() if contest.outcome == "not_faster"]
        )
        for choice, contest in contests.items():
            _report(meeting, choice, contest, recipe, is_gone=choice == gone)
        if gone is not None:
            meeting.recipe = recipe.without(gone.technique)
        if gone not in doubtful:
            return


def _is_refuted(meeting: Meeting, choice: Choice, contests: Contests, unseen: list[Choice]) -> bool:
    """What was never proved must at least seem to be worth something here; what never led clearly must be proved."""
    contest = contests[choice]
    is_unproved = choice not in meeting.leads and contest.outcome != "faster"
    if not contest.comparison.num_rounds:  # no time: as it looked the last time, if there was one
        return is_unproved and choice in unseen
    return is_unproved or contest.promise() < 1.0 + meeting.order.margin


def _race(meeting: Meeting, recipe: Recipe, doubtful: list[Choice]) -> Contests:
    """The last that won its own race has just been shown to be needed beside all others."""
    anchor = meeting.fresh_seat(recipe) if doubtful else meeting.seat(recipe)
    asked = [choice for choice in recipe.choices if choice in doubtful or choice != recipe.choices[-1]]
    contests = {choice: _contest(meeting, recipe, anchor, choice, len(doubtful)) for choice in asked}
    try:
        meeting.heat.race(list(contests.values()), lambda: meeting.budget.moment_s(TOTAL_SHARE), lambda contest: None)
    except RaceError as error:
        meeting.note(f"Leaving techniques out was not tried: {error}.")
        return {}
    return contests


def _contest(meeting: Meeting, recipe: Recipe, anchor: Seat, choice: Choice, num_doubtful: int) -> Contest:
    seat = meeting.seat(recipe.without(choice.technique))
    alpha = PROVING * meeting.order.alpha / max(1, num_doubtful)
    return meeting.contest(seat, anchor, alpha, is_mirrored=True)


def _least(contests: Contests, superfluous: list[Choice]) -> Choice | None:
    """One at a time: two that stand in for each other both look superfluous."""
    return min(superfluous, key=lambda choice: contests[choice].promise(), default=None)


def _report(meeting: Meeting, choice: Choice, contest: Contest, recipe: Recipe, is_gone: bool) -> None:
    speed = contest.speed()
    if not is_gone:
        meeting.paddock.leave(contest.seat)
    if speed is None:
        if is_gone:
            meeting.give_up(choice, "it was ahead, and there was no time to prove what it adds to the others")
        return
    reason = f"worth {times(speed)} inside the recipe"
    if is_gone:
        reason = f"leaving it out of {recipe} costs nothing: it is worth {times(speed)} there"
        meeting.revise(choice, "rejected", reason)
    elif contest.outcome == "faster" and choice in meeting.provisional():
        meeting.revise(choice, "kept", reason)
    verdict = Verdict(
        choice.technique,
        choice.setting,
        "rejected" if is_gone else "kept",
        reason,
        speed=speed,
        recipe=recipe.without(choice.technique),
        kind="left_out",
    )
    meeting.decide(verdict)
