"""Each technique alone against the base, then the settings of those that won: climbed from neighbour to neighbour, not
gridded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.records import Choice, Setting, Speed, Verdict
from slipstream.tune.budget import COMBINING_SHARE, TOTAL_SHARE, share_kept_back
from slipstream.tune.candidates import Candidate
from slipstream.tune.contest import Contest
from slipstream.tune.meeting import Meeting
from slipstream.tune.noise import MIN_ROUNDS
from slipstream.tune.ruling import rule, times
from slipstream.tune.seat import RaceError

TWIN_ROUNDS = 24
FEW_TWIN_ROUNDS = 12  # where it would keep the only place from the candidates
FEWEST_TWIN_ROUNDS = MIN_ROUNDS  # where every one of them costs two starts
AGAIN_SHARE = 0.1  # of the budget: for combining what wins at the second attempt


class Winner(msgspec.Struct, frozen=True):
    candidate: Candidate
    verdict: Verdict  # kept

    @property
    def choice(self) -> Choice:
        return self.verdict.choice

    @property
    def speed(self) -> Speed:
        assert self.verdict.speed is not None
        return self.verdict.speed


def num_comparisons(candidates: Sequence[Candidate]) -> int:
    """Every one gets its share of alpha: those that an earlier, interrupted tuning made, and the second setting of a
    technique, whether it comes to that or not."""
    return max(1, sum(min(2, len(one.settings)) for one in candidates))


def race_alone(
    meeting: Meeting, candidates: Sequence[Candidate], alpha: float, kept_back: float = 0.0, num_twins: int = 1
) -> list[Winner]:
    """Winners in the order of their gain; on top of the ground, where there is one. `kept_back` is the share of the
    time that is others' in any case."""
    winners = _recall(meeting, candidates)
    _note_best(meeting, winners)
    known = {verdict.technique for verdict in meeting.verdicts}
    by_name = {one.technique: one for one in candidates}
    footing = meeting.footing

    def contest_of(choice: Choice) -> Contest:
        return meeting.contest(meeting.seat(meeting.ground.plus(choice)), footing, alpha, base=meeting.base)

    def settle(contest: Contest) -> Contest | None:
        if contest.is_control:
            meeting.paddock.leave(contest.seat)
            return None
        choice = contest.seat.recipe.choices[-1]
        candidate = by_name[choice.technique]
        _settle(meeting, contest, candidate, winners)
        _note_best(meeting, winners)
        following = _second(candidate, choice, contest)
        return contest_of(following) if following is not None else None

    def deadline_s() -> float:
        num_climbing = sum(len(winner.candidate.settings) > 1 for winner in winners)
        return meeting.budget.moment_s(max(kept_back, share_kept_back(len(winners), num_climbing)))

    contests = [contest_of(one.first) for one in candidates if one.technique not in known]
    contests += [contest_of(Choice(one.technique, one.settings[1])) for one in candidates if _is_owed(meeting, one)]
    if contests:
        meeting.heat.warm(footing)
        twins = [meeting.twin_contest(footing, _num_twin_rounds(meeting)) for _ in range(num_twins)]
        meeting.heat.race([*twins, *contests], deadline_s, settle)
    return sorted(winners, key=lambda winner: -winner.speed.ratio)


def race_again(meeting: Meeting, candidates: Sequence[Candidate]) -> list[Winner]:
    """Those that the time had left undecided, when combining the winners took less than was kept for it. A comparison
    goes on where it stood: its interval is valid however often it is looked at."""
    by_name = {one.technique: one for one in candidates}
    contests = [one for one in meeting.undecided if one.anchor is meeting.footing]
    meeting.undecided = []
    deadline_s = meeting.budget.moment_s(TOTAL_SHARE + AGAIN_SHARE)
    winners: list[Winner] = []

    def settle(contest: Contest) -> None:
        _settle(meeting, contest, by_name[contest.seat.recipe.choices[-1].technique], winners)

    if contests and meeting.budget.now_s() + meeting.heat.need_s() < deadline_s:
        for contest in contests:
            contest.reopen()
        contests.sort(key=lambda contest: -contest.promise())
        try:
            meeting.heat.race(contests, lambda: deadline_s, settle)
        except RaceError as error:
            meeting.note(f"What was not decided could not be raced again: {error}.")
    return sorted(winners, key=lambda winner: -winner.speed.ratio)


def _settle(meeting: Meeting, contest: Contest, candidate: Candidate, winners: list[Winner]) -> None:
    choice = contest.seat.recipe.choices[-1]
    verdict = rule(meeting, contest, choice, candidate.is_keepable, meeting.speed_of(meeting.ground))
    meeting.decide(verdict)
    if verdict.decision == "kept":
        winners.append(Winner(candidate, verdict))
        return
    meeting.paddock.leave(contest.seat)
    if contest.outcome == "undecided":
        meeting.undecided.append(contest)


def _note_best(meeting: Meeting, winners: Sequence[Winner]) -> None:
    """Should the tuning be broken off here, this is what it knows."""
    if winners:
        meeting.recipe = meeting.ground.plus(max(winners, key=lambda winner: winner.speed.ratio).choice)


def _second(candidate: Candidate, choice: Choice, contest: Contest) -> Choice | None:
    """The best guess may miss: where it lost its race, one more setting gets a chance."""
    has_lost = contest.outcome in ("not_faster", "slower")
    if not has_lost or choice != candidate.first or len(candidate.settings) < 2:
        return None
    return Choice(candidate.technique, candidate.settings[1])


def _is_owed(meeting: Meeting, candidate: Candidate) -> bool:
    """Its second setting, by a tuning that was interrupted after the first one had lost."""
    seen = [one for one in meeting.verdicts if one.kind == "single" and one.technique == candidate.technique]
    if len(seen) != 1 or seen[0].choice != candidate.first or len(candidate.settings) < 2:
        return False
    return seen[0].decision == "rejected" and seen[0].speed is not None and seen[0].speed.low <= 1.0


def _num_twin_rounds(meeting: Meeting) -> int:
    if meeting.paddock.is_relaunching():
        return FEWEST_TWIN_ROUNDS
    return FEW_TWIN_ROUNDS if meeting.paddock.num_challengers() < 2 else TWIN_ROUNDS


def _recall(meeting: Meeting, candidates: Sequence[Candidate]) -> list[Winner]:
    """What an interrupted tuning had decided. Undecided ones race again."""
    by_name = {candidate.technique: candidate for candidate in candidates}
    winners: dict[str, Winner] = {}
    for verdict in meeting.journal.verdicts:
        if verdict.kind != "single" or verdict.technique not in by_name or verdict.decision == "unsure":
            continue
        meeting.decide(verdict, is_remembered=False)
        if verdict.decision == "kept":
            winners[verdict.technique] = Winner(by_name[verdict.technique], verdict)
    return list(winners.values())


def climb(meeting: Meeting, winners: Sequence[Winner]) -> list[Winner]:
    """The best setting of each."""
    kept_back = TOTAL_SHARE + (COMBINING_SHARE if len(winners) > 1 else 0.0)
    return [_climb_one(meeting, winner, kept_back) for winner in winners]


def _climb_one(meeting: Meeting, winner: Winner, kept_back: float) -> Winner:
    best, settings = winner, winner.candidate.settings
    tried = {verdict.setting for verdict in meeting.verdicts if verdict.technique == winner.choice.technique}
    while True:
        setting = neighbour(settings, best.choice.setting, tried)
        if setting is None or meeting.budget.now_s() >= meeting.budget.moment_s(kept_back):
            return best
        tried.add(setting)
        verdict = _challenge(meeting, best, Choice(winner.choice.technique, setting), kept_back)
        if verdict.decision == "kept":
            meeting.revise(best.choice, "rejected", f"{verdict.choice} is faster still, {_against_base(verdict)}")
            if meeting.recipe == meeting.ground.plus(best.choice):
                meeting.recipe = verdict.recipe
            best = Winner(winner.candidate, verdict)


def _challenge(meeting: Meeting, best: Winner, choice: Choice, kept_back: float) -> Verdict:
    seat, anchor = meeting.seat(meeting.ground.plus(choice)), meeting.seat(meeting.ground.plus(best.choice))
    contest = meeting.contest(seat, anchor, base=meeting.base)
    deadline_s = meeting.budget.moment_s(kept_back)
    try:
        meeting.heat.race([contest], lambda: deadline_s, lambda contest: None, meeting.companions())
    except RaceError as error:
        contest.abandon(str(error))
    verdict = meeting.decide(rule(meeting, contest, choice, through=best.speed))
    if verdict.decision != "kept":
        meeting.paddock.leave(seat)
    return verdict


def _against_base(verdict: Verdict) -> str:
    return times(verdict.speed) if verdict.speed is not None else "by its own race"


def neighbour(settings: Sequence[Setting], best: Setting, tried: set[Setting]) -> Setting | None:
    """Of numbers the next larger, else the next smaller; names have no neighbours: those after it in the list, one by
    one. Only what was not tried."""
    ordered = sorted(settings, key=_number) if _is_numeric(settings) else list(settings)
    if best not in ordered:
        return None
    at = ordered.index(best)
    beside = [*ordered[at + 1 : at + 2], *ordered[at - 1 : at]] if _is_numeric(settings) else ordered[at + 1 :]
    return next((setting for setting in beside if setting not in tried), None)


def _is_numeric(settings: Sequence[Setting]) -> bool:
    return all(isinstance(setting, int) and not isinstance(setting, bool) for setting in settings)


def _number(setting: Setting) -> int:
    assert isinstance(setting, int)
    return setting
