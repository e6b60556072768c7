"""Each technique of a recipe is left out once. What was built on before it was decided must seem to be worth something
here too, against a fresh rider of the recipe: the one that it was chosen by may have been lucky."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.records import Choice, Recipe, Verdict
from slipstream.report.text.numbers import times
from slipstream.tuning.budget import TOTAL_SHARE
from slipstream.tuning.comparison import Contest
from slipstream.tuning.state import Meeting
from slipstream.tuning.trials import RaceError, Seat

PROVING = 0.5  # of alpha: the other half was for the races alone
Contests = Mapping[Choice, Contest]


def leave_out(meeting: Meeting) -> None:
    """Again and again while something goes that was only built on: beside fewer others the rest may be worth more.
    What stays without proof stands or falls with the whole recipe."""
    seen: dict[Choice, float] = {}  # what each seemed to be worth when it was raced last
    while len(meeting.recipe.choices) > 1:
        recipe, doubtful = meeting.recipe, meeting.provisional()
        contests = _contests(meeting, recipe, doubtful)
        newcomers = [choice for choice, contest in contests.items() if not contest.seat.laps]
        if not _race(meeting, contests):
            return
        raced = {choice: contest for choice, contest in contests.items() if contest.comparison.num_rounds}
        seen |= {choice: contest.promise() for choice, contest in raced.items()}
        refuted = [choice for choice in doubtful if choice in contests and _is_refuted(meeting, choice, raced, seen)]
        superfluous = [choice for choice, contest in contests.items() if contest.outcome == "not_faster"]
        gone = _least(contests, going(refuted, doubtful, raced) or superfluous)
        for choice, contest in contests.items():
            _report(meeting, choice, contest, recipe, is_gone=choice == gone)
        if gone is not None:
            meeting.recipe = recipe.without(gone.technique)
            if gone in newcomers:
                meeting.adopt(contests[gone].seat)
        if gone not in doubtful:
            return


def _is_refuted(meeting: Meeting, choice: Choice, raced: Contests, seen: Mapping[Choice, float]) -> bool:
    """What was never proved must at least seem to be worth something here; what never led clearly must be proved, as
    long as there is time."""
    if choice in seen and seen[choice] < 1.0 + meeting.order.margin:
        return True
    is_open = choice in raced or choice not in seen
    return is_open and choice not in meeting.leads and (choice not in raced or raced[choice].outcome != "faster")


def going(refuted: Sequence[Choice], doubtful: Sequence[Choice], raced: Contests) -> list[Choice]:
    """One of these: what there was no time for; else, if anything is refuted, any that is not proved, for a lead may
    have been luck, and what it took the time from may be the gain."""
    if not refuted:
        return []
    unraced = [choice for choice in refuted if choice not in raced]
    return unraced or [choice for choice in doubtful if choice in raced and raced[choice].outcome != "faster"]


def _contests(meeting: Meeting, recipe: Recipe, doubtful: list[Choice]) -> Contests:
    """The last that won its own race has just been shown to be needed beside all others. What must be proved comes
    first, the greatest hope before the others: the time may be over before the last has started."""
    anchor = meeting.fresh_seat(recipe) if doubtful else meeting.seat(recipe)
    asked = [choice for choice in recipe.choices if choice in doubtful or choice != recipe.choices[-1]]
    asked.sort(key=lambda choice: (choice in meeting.leads or choice not in doubtful, -_hope(meeting, choice)))
    return {choice: _contest(meeting, recipe, anchor, choice, len(doubtful)) for choice in asked}


def _race(meeting: Meeting, contests: Contests) -> bool:
    try:
        meeting.heat.race(list(contests.values()), lambda: meeting.budget.moment_s(TOTAL_SHARE), lambda contest: None)
    except RaceError as error:
        meeting.note(f"Leaving techniques out was not tried: {error}.")
        return False
    return True


def _hope(meeting: Meeting, choice: Choice) -> float:
    """What it seemed to gain on top of what it was raced on."""
    won = next((one for one in reversed(meeting.verdicts) if one.kind == "single" and one.choice == choice), None)
    if won is None or won.speed is None:
        return 0.0
    ground = meeting.speed_of(won.recipe.without(choice.technique))
    return won.speed.ratio / (ground.ratio if ground is not None else 1.0)


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
