"""A tuning from a diagnosed check to a recipe: ground, passes, left out, all of it. Proposes heats; when they
are decided and what is remembered is others' business. Pure apart from the track and the journal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from slipstream.recipe.conflicts import conflict_with, find_conflicts
from slipstream.records import Recipe, Session, Tuning, Verdict
from slipstream.techniques._core.catalogue import Technique, catalogue
from slipstream.techniques._core.observation import Observation
from slipstream.tuning.ablation import leave_out
from slipstream.tuning.budget import HOPE_SHARE, share_kept_back
from slipstream.tuning.candidates import Candidate, latecomers, propose, ruled_out
from slipstream.tuning.combined_races import combine
from slipstream.tuning.comparison import Contest
from slipstream.tuning.final_race import TURNING_SHARE, race_total
from slipstream.tuning.journal import Journal, facts_of
from slipstream.tuning.options import TuneOrder
from slipstream.tuning.progress import Teller
from slipstream.tuning.result import conclude
from slipstream.tuning.single_races import Winner, climb, climb_names, num_comparisons, race_alone, race_ground
from slipstream.tuning.state import Meeting
from slipstream.tuning.trials import RaceError
from slipstream.wire.backend import Track

LOOKED_BETTER, LOOKED_WORSE = 1.03, 0.75  # when it was raced before: then it comes first, or last
FEW_OTHERS = 3  # that are turned to: every one of them must start anew
FEW_NAMED = 4  # candidates that a longer budget is told for
LATER = 0.25  # of alpha, from pass to pass: what was raced before has had a chance already


def tune(
    session: Session,
    track: Track,
    order: TuneOrder,
    tell: Teller,
    techniques: Mapping[str, Technique] | None = None,
) -> Tuning:
    """`session` is a diagnosed check. ValueError: the order names what there is not. RaceError: the script as it is
    could not be raced. Interrupted, it returns what is known; the journal goes on from there."""
    known = catalogue() if techniques is None else techniques
    candidates, refused = propose(session, order, known)
    journal = Journal(order.journal, facts_of(session, order) if order.journal else {})
    meeting = Meeting(session, track, order, tell, known, journal)
    for verdict in refused:
        meeting.decide(verdict, is_remembered=False)
    total: Contest | None = None
    is_complete = was_interrupted = False
    try:
        total = _search(meeting, candidates)
        is_complete = True
    except RaceError as error:
        if not meeting.base.laps:
            raise
        meeting.note(f"The tuning ended early: {error}.")
    except KeyboardInterrupt:
        was_interrupted = True
        meeting.note("Interrupted. The same command goes on from here." if journal.is_kept else "Interrupted.")
    finally:
        meeting.paddock.clear()
    for choice in meeting.provisional():
        meeting.give_up(choice, "it was ahead when the tuning ended, and had not been proved")
    if journal.fault:
        meeting.note(journal.fault)
    if is_complete:
        journal.delete()
    return conclude(meeting, total, is_complete, was_interrupted)


def _search(meeting: Meeting, candidates: Sequence[Candidate]) -> Contest | None:
    meeting.conflicts = find_conflicts({ident: technique.CARD for ident, technique in meeting.techniques.items()})
    if meeting.journal.verdicts:
        meeting.note(f"Resumed: {len(meeting.journal.verdicts)} verdicts stand from the tuning that was interrupted.")
    finished = meeting.journal.finished
    if finished is not None:
        meeting.recipe = finished.recipe
        known = {(verdict.kind, verdict.choice) for verdict in meeting.verdicts}
        for verdict in finished.revised:
            if (verdict.kind, verdict.choice) not in known:
                meeting.decide(verdict, is_remembered=False)
    else:
        _find_recipe(meeting, candidates)
        meeting.journal.finish(meeting.recipe, meeting.verdicts)
    if not meeting.recipe.choices:
        return None
    others = _undecided(meeting, candidates)
    total, meeting.recipe = race_total(meeting, meeting.recipe, is_last=not others)
    if others and not meeting.recipe.choices and meeting.budget.left_s() > TURNING_SHARE * meeting.budget.budget_s:
        _turn_to(meeting, others, total, meeting.order.alpha / num_comparisons(candidates))
        if meeting.recipe.choices:
            meeting.verdicts = [one for one in meeting.verdicts if one.kind != "total"]
            meeting.journal.finish(meeting.recipe, meeting.verdicts)
            total, meeting.recipe = race_total(meeting, meeting.recipe)
    return total


def _find_recipe(meeting: Meeting, candidates: Sequence[Candidate]) -> None:
    alpha = meeting.order.alpha / num_comparisons(candidates)
    meeting.hope_s = meeting.budget.moment_s(HOPE_SHARE)
    begun = _lay_ground(meeting, candidates, alpha)
    left = [one for one in candidates if meeting.is_open(one.technique)]
    _build(meeting, candidates, left, alpha, begun)


def _undecided(meeting: Meeting, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Who might still be found to gain, had the recipe in hand to go: what lost on top of that may win without it."""
    in_hand = {choice.technique for choice in meeting.recipe.choices}
    out = ruled_out(meeting.verdicts, {one.technique for one in candidates}) | in_hand
    out |= {one.technique for one in meeting.verdicts if one.decision == "rejected" and len(one.recipe.choices) < 2}
    return [one for one in candidates if one.is_keepable and one.technique not in out]


def _turn_to(meeting: Meeting, others: Sequence[Candidate], fallen: Contest, alpha: float) -> None:
    """What was built on was luck, and there is time: the best of the others go on where they stood. Once, for every
    whole recipe that is raced has half of alpha."""
    meeting.note(f"{fallen.seat.recipe} did not hold in the end: there was time to turn to others.")
    meeting.paddock.leave(fallen.seat)
    meeting.paddock.leave(fallen.anchor)
    meeting.ground = Recipe()
    meeting.hope_s = meeting.budget.ahead_s(HOPE_SHARE)
    best = sorted(others, key=lambda one: -meeting.race_of(one.first, alpha).outlook())[:FEW_OTHERS]
    _build(meeting, others, best, alpha, num_twins=0)


def _build(
    meeting: Meeting,
    candidates: Sequence[Candidate],
    left: list[Candidate],
    alpha: float,
    begun: Sequence[Contest] = (),
    num_twins: int = 1,
) -> None:
    """Pass by pass, each on top of what those before it have won: what gains nothing where the step computes may gain
    much where it waits, and the other way round."""
    built = list[Winner]()
    while left:
        winners = race_alone(meeting, left, alpha, begun, num_twins)
        if meeting.paddock.is_relaunching():
            meeting.note(
                "Memory holds one rider at a time: they took turns by relaunching, which is slower and less exact."
            )
        if not winners:
            left = [one for one in _left(meeting, candidates) if meeting.had_nothing_to_do(one.technique)]
            begun, num_twins = [], 0
            continue
        meeting.recipe = meeting.on_ground(winners[0].choice)
        winners = sorted(climb(meeting, winners), key=lambda winner: -winner.speed.ratio)
        before, meeting.recipe = meeting.ground, combine(meeting, winners)
        meeting.give_way(before)
        meeting.ground = meeting.recipe
        built += winners
        left, begun, num_twins = _left(meeting, candidates), [], 0
        alpha *= LATER
    leave_out(meeting)
    climb_names(meeting, built)
    _note_too_little_time(meeting)


def _note_too_little_time(meeting: Meeting) -> None:
    """Where steps or starts are so long that not one was raced: how much would do."""
    single = [one for one in meeting.verdicts if one.kind == "single" and one.decision != "not_applicable"]
    waiting = {one.technique for one in single}
    if not waiting or any(one.decision != "unsure" or one.speed is not None for one in single):
        return
    num_named = min(len(waiting), FEW_NAMED)
    minutes = math.ceil(meeting.heat.whole_s(num_named) / 60)
    which = "them" if num_named == len(waiting) else f"the {num_named} most promising"
    meeting.note(f"Steps and starts are long here, and none was raced: --budget {minutes}m would do for {which}.")


def _lay_ground(meeting: Meeting, candidates: Sequence[Candidate], alpha: float) -> list[Contest]:
    """What makes every start of a script as fast as the next comes first. Where it wins, all else is raced on top of
    it: there a difference between two riders is a difference between their recipes. Gives the contests that go on."""
    winners, begun = race_ground(meeting, [one for one in candidates if one.card.is_ground], alpha)
    if winners:
        meeting.recipe = meeting.ground = Recipe((winners[0].choice,))
        meeting.note(f"{meeting.ground} comes first: what follows is raced on top of it.")
        return []
    return begun


def _left(meeting: Meeting, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Who may gain on top of what is kept now, where there is time: those that merely gained too little before, those
    that had nothing to do, and those that were not raced since another led that claims the same: in its place."""
    asked = {one.technique for one in candidates}
    seen = {one.technique for one in meeting.verdicts if not meeting.had_nothing_to_do(one.technique)}
    out = ruled_out(meeting.verdicts, asked | seen)
    was_slowing = any(one.kind == "single" and one.technique not in asked for one in meeting.journal.verdicts)
    observation = Observation(meeting.session, meeting.heat.is_slowing or was_slowing)
    late = latecomers(observation, meeting.order, meeting.techniques, meeting.recipe, out)
    named = {one.technique: one for one in late}  # first: it is this recipe that they suit
    for one in sorted(candidates, key=lambda one: (_outlook(meeting, one.technique), _is_cured(meeting, one))):
        if one.technique not in out and one.is_keepable:
            named.setdefault(one.technique, one)
    free = []
    for name, one in named.items():
        conflict = conflict_with(name, meeting.recipe, meeting.conflicts)
        if conflict is not None and (raced := _last_raced(meeting, name)) is not None:
            is_open = raced.decision == "unsure"
            how = "led first, and this was not decided" if is_open else "gains more"
            meeting.revise_last(name, "unsure" if is_open else "rejected", f"{conflict}; the other one {how}")
        elif meeting.recipe.setting_of(name) is None:
            free.append(one)
    pass_s = meeting.heat.pass_s(meeting.recipe, len(free))
    kept_back = share_kept_back(1, 0, meeting.num_provisional)
    return free if meeting.budget.now_s() + pass_s < meeting.budget.moment_s(kept_back) else []


def _outlook(meeting: Meeting, technique: str) -> int:
    """How it looked when it was raced before, on top of less: the smaller the better. Who was not raced yet may gain
    more than one that was and did not look like a gain."""
    raced = [(one.speed, one.recipe) for one in meeting.verdicts if one.technique == technique and one.speed]
    if not raced:
        return 1
    speed, recipe = raced[-1]
    ground = meeting.speed_of(recipe.without(technique))
    gain = speed.ratio / (ground.ratio if ground is not None else 1.0)
    return 0 if gain >= LOOKED_BETTER else 3 if gain < LOOKED_WORSE else 2


def _is_cured(meeting: Meeting, candidate: Candidate) -> bool:
    """All that was found and that it answers something in the recipe answers already: less is left to gain there than
    where nothing was tried yet."""
    found = {finding.cause for finding in meeting.session.findings}.intersection(candidate.card.causes)
    kept = [meeting.techniques[choice.technique].CARD.causes for choice in meeting.recipe.choices]
    return bool(found) and found.issubset(itertools.chain.from_iterable(kept))


def _last_raced(meeting: Meeting, technique: str) -> Verdict | None:
    raced = (one for one in reversed(meeting.verdicts) if one.technique == technique and one.speed is not None)
    return next(raced, None)
