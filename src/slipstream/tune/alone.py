"""Each technique alone against the base, then the settings of those that won: climbed from neighbour to neighbour, not
gridded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.records import Choice, Recipe, Setting, Speed, Verdict
from slipstream.tune.budget import COMBINING_SHARE, TOTAL_SHARE, share_kept_back
from slipstream.tune.candidates import Candidate
from slipstream.tune.contest import Contest
from slipstream.tune.meeting import Meeting
from slipstream.tune.ruling import rule, times
from slipstream.tune.seat import RaceError

TWIN_ROUNDS = 24
FEW_TWIN_ROUNDS = 12  # where it would keep the only place from the candidates


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


def race_alone(meeting: Meeting, candidates: Sequence[Candidate]) -> list[Winner]:
    """Winners in the order of their gain."""
    winners = _recall(meeting, candidates)
    known = {verdict.technique for verdict in meeting.verdicts}
    fresh = {Recipe((one.first,)): one for one in candidates if one.technique not in known}
    # Every comparison gets its share of alpha, also those that an earlier, interrupted tuning made.
    alpha = meeting.order.alpha / max(1, len(candidates))
    contests = [meeting.contest(meeting.seat(recipe), meeting.base, alpha) for recipe in fresh]

    def settle(contest: Contest) -> None:
        if contest.is_control:
            meeting.paddock.leave(contest.seat)
            return
        candidate = fresh[contest.seat.recipe]
        verdict = rule(meeting, contest, candidate.first, candidate.is_keepable)
        meeting.decide(verdict)
        if verdict.decision == "kept":
            winners.append(Winner(candidate, verdict))
        else:
            meeting.paddock.leave(contest.seat)

    def deadline_s() -> float:
        num_climbing = sum(len(winner.candidate.settings) > 1 for winner in winners)
        return meeting.budget.moment_s(share_kept_back(len(winners), num_climbing))

    if contests:
        meeting.heat.warm(meeting.base)
        few = meeting.paddock.is_relaunching() or meeting.paddock.num_challengers() < 2
        twin = meeting.twin_contest(FEW_TWIN_ROUNDS if few else TWIN_ROUNDS)
        meeting.heat.race([twin, *contests], deadline_s, settle)
    return sorted(winners, key=lambda winner: -winner.speed.ratio)


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
            best = Winner(winner.candidate, verdict)
        elif not _is_numeric(settings):
            return best


def _challenge(meeting: Meeting, best: Winner, choice: Choice, kept_back: float) -> Verdict:
    seat, anchor = meeting.seat(Recipe((choice,))), meeting.seat(Recipe((best.choice,)))
    contest = meeting.contest(seat, anchor, base=meeting.base)
    deadline_s = meeting.budget.moment_s(kept_back)
    try:
        meeting.heat.race([contest], lambda: deadline_s, lambda contest: None, meeting.companions())
    except RaceError as error:
        contest.fail(str(error))
    verdict = meeting.decide(rule(meeting, contest, choice, through=best.speed))
    if verdict.decision != "kept":
        meeting.paddock.leave(seat)
    return verdict


def _against_base(verdict: Verdict) -> str:
    return times(verdict.speed) if verdict.speed is not None else "by its own race"


def neighbour(settings: Sequence[Setting], best: Setting, tried: set[Setting]) -> Setting | None:
    """Of numbers the next larger, else the next smaller; of others the next in the list. Only what was not tried."""
    ordered = sorted(settings, key=_number) if _is_numeric(settings) else list(settings)
    if best not in ordered:
        return None
    at = ordered.index(best)
    beside = [*ordered[at + 1 : at + 2], *(ordered[at - 1 : at] if _is_numeric(settings) else [])]
    return next((setting for setting in beside if setting not in tried), None)


def _is_numeric(settings: Sequence[Setting]) -> bool:
    return all(isinstance(setting, int) and not isinstance(setting, bool) for setting in settings)


def _number(setting: Setting) -> int:
    assert isinstance(setting, int)
    return setting
