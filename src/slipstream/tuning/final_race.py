"""The whole recipe against the base, with fresh riders; what does not hold then is not kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from slipstream.records import Choice, Decision, Numerics, Recipe, RiderRecord, Speed, Verdict
from slipstream.report.text.numbers import times
from slipstream.tuning.comparison import LUCK, Contest, Outcome
from slipstream.tuning.numerics import RIDE_SHARE
from slipstream.tuning.state import Meeting
from slipstream.tuning.trials import RaceError, Seat
from slipstream.tuning.verdicts import describe

NUM_TWINS = 1
TWIN_ROUNDS = 32  # then the time is the recipe's: its interval is what the user is promised
TURNING_SHARE = 0.15  # of the budget: with less left it is too late to turn to others
AGAIN_SHARE = 0.1  # of the time that is left
OVER = 0.0  # a moment that has passed
MIN_ROUNDS = 12  # fewer cannot speak against what the techniques showed one by one
_OUT: tuple[Outcome, ...] = ("failed", "slower", "declined", "no_effect")


def race_total(meeting: Meeting, recipe: Recipe, is_last: bool = True) -> tuple[Contest, Recipe]:
    """The contest, and the recipe if it held. `is_last`: there is nobody else to turn to."""
    seat, base = _fresh_seat(meeting, recipe), _fresh_base(meeting)
    contest = meeting.contest(seat, base, goal="measure")
    meeting.jury.bases.append(base)
    if base.rider is None and seat.rider is None:
        meeting.paddock.renew()
    _ride(meeting, contest, is_last)
    record = meeting.paddock.record(seat)
    is_proved = not meeting.num_provisional
    lost = _doubt(contest, meeting.order.alpha, meeting.noise.margin(base), is_proved)
    numerics = _hear(meeting, contest, record) if lost is None else meeting.glance(seat, record)
    decision, reason = _weigh(contest, numerics, lost)
    verdict = describe(meeting, contest, Choice("recipe"), record)
    earlier = _earlier_proof(meeting, recipe) if contest.outcome not in _OUT else None
    if contest.speed() is None and earlier is not None:
        numerics, decision, reason = earlier.numerics, "kept", _untimed(contest, earlier)
        verdict = msgspec.structs.replace(verdict, speed=earlier.speed, step_ms=earlier.step_ms)
    meeting.decide(msgspec.structs.replace(verdict, decision=decision, reason=reason, numerics=numerics, kind="total"))
    if decision == "kept":
        _note_trend(meeting, contest)
        for choice in meeting.provisional():
            meeting.revise(choice, "kept", _reason(recipe, reason))
        return contest, recipe
    for choice in recipe.choices:
        meeting.revise(choice, decision, f"won its own race, but the whole recipe {reason}")
    return contest, Recipe()


def _earlier_proof(meeting: Meeting, recipe: Recipe) -> Verdict | None:
    """The verdict by which this very recipe was kept, if all of its interval lies beyond 1."""
    alike = [one for one in meeting.verdicts if one.kind in ("single", "cumulative") and one.recipe == recipe]
    return next((one for one in reversed(alike) if one.decision == "kept" and _is_beyond_one(one.speed)), None)


def _is_beyond_one(speed: Speed | None) -> bool:
    return speed is not None and speed.is_bounded and speed.low > 1.0


def _untimed(contest: Contest, earlier: Verdict) -> str:
    assert earlier.speed is not None
    why = f": {contest.failure}" if contest.failure else ""
    return f"{times(earlier.speed)} in its own race; the last race could not be timed{why}"


def _note_trend(meeting: Meeting, contest: Contest) -> None:
    """The total is of the steps that were ridden, and a training may be longer."""
    gains, num_steps = contest.trend(), contest.seat.num_steps
    if gains is not None and not any(lap.is_last for lap in contest.seat.laps):  # else it began anew in between
        at_first, later = gains
        meeting.note(
            f"What is gained changes as the training goes on: {at_first:.2f}x at first, {later:.2f}x in the last of"
            f" {num_steps:,} steps."
        )


def _ride(meeting: Meeting, contest: Contest, is_last: bool) -> None:
    """In two halves: whatever luck the processes of the first had for life, those of the second will not have it."""
    recipe, budget = contest.seat.recipe, meeting.budget
    is_owed = _owes_proof(meeting, recipe, meeting.paddock.record(meeting.seat(recipe)))
    end_s = budget.moment_s(RIDE_SHARE * (meeting.jury.num_rides(meeting.claim(recipe)) + is_owed))

    def deadline_s() -> float:
        is_over = not is_last and contest.is_dim() and budget.now_s() < budget.moment_s(TURNING_SHARE)
        return OVER if is_over else end_s

    num_twins = min(NUM_TWINS, meeting.paddock.num_challengers() - 1)
    beside = [meeting.twin_contest(contest.anchor, TWIN_ROUNDS) for _ in range(num_twins)]
    half_s = budget.ahead_s(0.5) if _may_start_again(meeting, recipe) else end_s
    _race(meeting, [contest, *beside], lambda: min(half_s, deadline_s()))
    if half_s < end_s and contest.outcome in ("undecided", "measured") and deadline_s() > OVER:
        meeting.paddock.leave(contest.seat)
        meeting.paddock.leave(contest.anchor)
        meeting.paddock.renew()
        contest.start_again()
        _race(meeting, [contest], deadline_s)


def _race(meeting: Meeting, contests: Sequence[Contest], deadline_s: Callable[[], float]) -> None:
    """Should the base not stay in it, the rounds so far count. Raises RaceError if there are none."""
    total = contests[0]
    try:
        meeting.heat.race(contests, deadline_s, lambda contest: None)
    except RaceError as error:
        if not total.comparison.num_rounds:
            raise
        total.abandon(str(error))
        meeting.note(f"The last race was broken off: {error}.")


def _may_start_again(meeting: Meeting, recipe: Recipe) -> bool:
    startup_s = sum(meeting.paddock.record(seat).startup_s for seat in (meeting.base, meeting.seat(recipe)))
    return not meeting.paddock.is_relaunching() and startup_s < AGAIN_SHARE * meeting.budget.left_s()


def _reason(recipe: Recipe, reason: str) -> str:
    """For what was never proved by itself."""
    return reason if len(recipe.choices) == 1 else f"what it adds was not decided; the whole recipe: {reason}"


def _fresh_seat(meeting: Meeting, recipe: Recipe) -> Seat:
    """Another process than the one that won: whatever luck that had, it kept. Where a start takes a tenth of the time
    that is left, the old one rides on."""
    known = meeting.seat(recipe)
    startup_s = meeting.paddock.record(known).startup_s
    if known.rider is not None and startup_s > 0.1 * meeting.budget.left_s():
        return known
    return meeting.fresh_seat(recipe)


def _fresh_base(meeting: Meeting) -> Seat:
    """If the one that lost to all others was only unlucky, another will not be."""
    startup_s = meeting.paddock.record(meeting.base).startup_s
    if not meeting.base.laps or meeting.paddock.is_relaunching() or startup_s > 0.1 * meeting.budget.left_s():
        return meeting.base
    meeting.paddock.leave(meeting.base)
    return Seat("base", Recipe())


def _owes_proof(meeting: Meeting, recipe: Recipe, record: RiderRecord) -> bool:
    """A single technique may have been proved when it won; several that need it are proved together."""
    is_open = len(recipe.choices) > 1 or not meeting.jury.has_proved(recipe)
    return is_open and meeting.jury.needs_proof(meeting.claim(recipe), record)


def _hear(meeting: Meeting, contest: Contest, record: RiderRecord) -> Numerics | None:
    """After the race, when the base has ridden: a resumed tuning knows no step of it before. None: nothing was seen."""
    if contest.outcome in _OUT or meeting.glance(contest.seat, record) is None:
        return None
    recipe, num_steps = contest.seat.recipe, contest.seat.num_steps
    claim = meeting.claim(recipe)
    numerics = meeting.jury.hear(claim, record, num_steps, is_last=True)
    if _owes_proof(meeting, recipe, record) and numerics.is_sound is not False:
        numerics = meeting.jury.prove(claim, recipe, num_steps)
    return numerics


def _doubt(contest: Contest, alpha: float, margin: float, is_proved: bool) -> tuple[Decision, str] | None:
    """Why it is not kept, whatever its numerics are: then no twin need ride for them. `is_proved`: each technique has
    shown its worth in a race of its own."""
    if contest.outcome == "slower":
        return "rejected", f"was slower at the end: {contest.failure}"
    if contest.outcome in _OUT:
        return "failed", f"failed at the end: {contest.failure}"
    speed = contest.speed()
    if speed is None:
        return "unsure", "could not be timed at the end"
    if contest.comparison.is_not_faster(0.0, alpha):
        return "rejected", f"was no faster at the end: {times(speed)}"
    if speed.num_rounds >= MIN_ROUNDS and not contest.is_proved():
        return "unsure", f"was not faster beyond doubt at the end: {times(speed)}"
    if contest.promise() <= 1.0 + margin:
        return "unsure", f"was no faster at the end than nothing at all may seem to be: {times(speed)}, {margin:.0%}"
    if contest.promise() <= 1.0 + LUCK:
        return "unsure", f"gained so little at the end that it may be the luck of a start: {times(speed)}"
    if contest.promise_of_last_start() <= 1.0:
        return "unsure", f"was no faster when it was started again: {times(speed)} in all"
    if not is_proved and not contest.is_proved():
        return "unsure", f"was not faster beyond doubt in the time that was left: {times(speed)}"
    return None


def _weigh(contest: Contest, numerics: Numerics | None, lost: tuple[Decision, str] | None) -> tuple[Decision, str]:
    if lost is not None:
        return lost
    if numerics is not None and numerics.is_sound is False:
        return "rejected", f"is not sound: {numerics.reason}"
    if numerics is None or numerics.is_sound is None:
        why = f": {numerics.reason}" if numerics is not None else ""
        return "unsure", f"was faster at the end, but its numerics could not be seen{why}"
    speed = contest.speed()
    assert speed is not None
    if not contest.is_proved():
        return "kept", f"by its own race; {speed.num_rounds} rounds were left for the whole: {times(speed)}"
    return "kept", f"{times(speed)} against the script as it is"
