"""Searches for the best recipe, from a diagnosed check: the ground first, then passes of single races and combinations,
then the ablation, then the final race. This module chooses what to race. It has no side effects except through the
backend and the journal."""

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
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.final_race import TURNING_SHARE, race_total
from slipstream.tuning.journal import Journal, facts_of
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import ProgressListener
from slipstream.tuning.result import conclude
from slipstream.tuning.single_races import Winner, climb, climb_names, num_comparisons, race_alone, race_ground
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RaceError
from slipstream.wire.backend import RaceBackend

LOOKED_BETTER, LOOKED_WORSE = 1.03, 0.75  # ratios in an earlier race: better candidates come first, worse ones last
FEW_OTHERS = 3  # further candidates after a failed final race: each must start again
FEW_NAMED = 4  # the most candidates for which a longer budget is suggested
LATER = 0.25  # factor of alpha from pass to pass: earlier candidates have had their chance


def tune(
    session: Session,
    backend: RaceBackend,
    order: TuneOptions,
    tell: ProgressListener,
    techniques: Mapping[str, Technique] | None = None,
) -> Tuning:
    """Runs a tuning. `session` is a diagnosed check. Raises ValueError if the options name an unknown technique, and
    RaceError if the unchanged script could not be raced. If it is interrupted, it returns what is known so far, and the
    same command resumes from the journal."""
    known = catalogue() if techniques is None else techniques
    candidates, refused = propose(session, order, known)
    journal = Journal(order.journal, facts_of(session, order) if order.journal else {})
    state = TuningState(session, backend, order, tell, known, journal)
    for verdict in refused:
        state.decide(verdict, is_remembered=False)
    total: Comparison | None = None
    is_complete = was_interrupted = False
    try:
        total = _search(state, candidates)
        is_complete = True
    except RaceError as error:
        if not state.base.timings:
            raise
        state.note(f"The tuning ended early: {error}.")
    except KeyboardInterrupt:
        was_interrupted = True
        state.note("Interrupted. The same command continues from here." if journal.is_kept else "Interrupted.")
    finally:
        state.pool.clear()
    for choice in state.provisional():
        state.give_up(choice, "it was ahead when the tuning ended, but was not proved")
    if journal.fault:
        state.note(journal.fault)
    if is_complete:
        journal.delete()
    return conclude(state, total, is_complete, was_interrupted)


def _search(state: TuningState, candidates: Sequence[Candidate]) -> Comparison | None:
    state.conflicts = find_conflicts({ident: technique.CARD for ident, technique in state.techniques.items()})
    if state.journal.verdicts:
        state.note(f"Resumed: {len(state.journal.verdicts)} verdicts were taken from the interrupted tuning.")
    finished = state.journal.finished
    if finished is not None:
        state.recipe = finished.recipe
        known = {(verdict.kind, verdict.choice) for verdict in state.verdicts}
        for verdict in finished.revised:
            if (verdict.kind, verdict.choice) not in known:
                state.decide(verdict, is_remembered=False)
    else:
        _find_recipe(state, candidates)
        state.journal.finish(state.recipe, state.verdicts)
    if not state.recipe.choices:
        return None
    others = _undecided(state, candidates)
    total, state.recipe = race_total(state, state.recipe, is_last=not others)
    if others and not state.recipe.choices and state.budget.left_s() > TURNING_SHARE * state.budget.budget_s:
        _turn_to(state, others, total, state.order.alpha / num_comparisons(candidates))
        if state.recipe.choices:
            state.verdicts = [one for one in state.verdicts if one.kind != "total"]
            state.journal.finish(state.recipe, state.verdicts)
            total, state.recipe = race_total(state, state.recipe)
    return total


def _find_recipe(state: TuningState, candidates: Sequence[Candidate]) -> None:
    alpha = state.order.alpha / num_comparisons(candidates)
    state.hope_s = state.budget.moment_s(HOPE_SHARE)
    begun = _lay_ground(state, candidates, alpha)
    left = [one for one in candidates if state.is_open(one.technique)]
    _build(state, candidates, left, alpha, begun)


def _undecided(state: TuningState, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that may still gain if the current recipe is not kept. A candidate that lost on top of it may win
    without it."""
    in_hand = {choice.technique for choice in state.recipe.choices}
    out = ruled_out(state.verdicts, {one.technique for one in candidates}) | in_hand
    out |= {one.technique for one in state.verdicts if one.decision == "rejected" and len(one.recipe.choices) < 2}
    return [one for one in candidates if one.is_keepable and one.technique not in out]


def _turn_to(state: TuningState, others: Sequence[Candidate], failed: Comparison, alpha: float) -> None:
    """Continues with the best other candidates after the recipe failed in the final race. This happens at most once,
    because every final race uses half of alpha."""
    state.note(f"{failed.trials.recipe} was not kept in the final race. There was time left to race other techniques.")
    state.pool.leave(failed.trials)
    state.pool.leave(failed.anchor)
    state.ground = Recipe()
    state.hope_s = state.budget.ahead_s(HOPE_SHARE)
    best = sorted(others, key=lambda one: -state.race_of(one.first, alpha).optimistic_ratio())[:FEW_OTHERS]
    _build(state, others, best, alpha, num_controls=0)


def _build(
    state: TuningState,
    candidates: Sequence[Candidate],
    left: list[Candidate],
    alpha: float,
    begun: Sequence[Comparison] = (),
    num_controls: int = 1,
) -> None:
    """Builds the recipe in passes. Each pass races candidates on top of the recipe so far, because a technique that
    gains nothing in a step that computes may gain much in a step that waits, and vice versa."""
    built = list[Winner]()
    while left:
        winners = race_alone(state, left, alpha, begun, num_controls)
        if state.pool.is_relaunching():
            state.note(
                "Only one trial fits in memory, so trials were started again for every turn: slower and less exact."
            )
        if not winners:
            left = [one for one in _left(state, candidates) if state.had_nothing_to_do(one.technique)]
            begun, num_controls = [], 0
            continue
        state.recipe = state.on_ground(winners[0].choice)
        winners = sorted(climb(state, winners), key=lambda winner: -winner.speed.ratio)
        before, state.recipe = state.ground, combine(state, winners)
        state.give_way(before)
        state.ground = state.recipe
        built += winners
        left, begun, num_controls = _left(state, candidates), [], 0
        alpha *= LATER
    leave_out(state)
    climb_names(state, built)
    _note_too_little_time(state)


def _note_too_little_time(state: TuningState) -> None:
    """Suggests a budget if steps or starts are so long that no candidate was raced."""
    single = [one for one in state.verdicts if one.kind == "single" and one.decision != "not_applicable"]
    waiting = {one.technique for one in single}
    if not waiting or any(one.decision != "unsure" or one.speed is not None for one in single):
        return
    num_named = min(len(waiting), FEW_NAMED)
    minutes = math.ceil(state.scheduler.whole_s(num_named) / 60)
    which = "them" if num_named == len(waiting) else f"the {num_named} most promising"
    state.note(
        f"Steps and starts are long here, and no technique was raced: --budget {minutes}m is enough for {which}."
    )


def _lay_ground(state: TuningState, candidates: Sequence[Candidate], alpha: float) -> list[Comparison]:
    """Races techniques first that make all starts of a script equally fast. If one wins, all others are raced on top of
    it, so that a difference between two trials is a difference between their recipes. Returns the comparisons to
    continue."""
    winners, begun = race_ground(state, [one for one in candidates if one.card.is_ground], alpha)
    if winners:
        state.recipe = state.ground = Recipe((winners[0].choice,))
        state.note(f"{state.ground} comes first: the other techniques are raced on top of it.")
        return []
    return begun


def _left(state: TuningState, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that may gain on top of the current recipe, if there is time. They are those that only gained too
    little before, those that did not apply before, and those that were not raced because a conflicting technique led.
    The last would replace that technique."""
    asked = {one.technique for one in candidates}
    seen = {one.technique for one in state.verdicts if not state.had_nothing_to_do(one.technique)}
    out = ruled_out(state.verdicts, asked | seen)
    was_slowing = any(one.kind == "single" and one.technique not in asked for one in state.journal.verdicts)
    observation = Observation(state.session, state.scheduler.is_slowing or was_slowing)
    late = latecomers(observation, state.order, state.techniques, state.recipe, out)
    named = {one.technique: one for one in late}  # first, because they suit this recipe
    for one in sorted(candidates, key=lambda one: (_earlier_rank(state, one.technique), _is_addressed(state, one))):
        if one.technique not in out and one.is_keepable:
            named.setdefault(one.technique, one)
    free = []
    for name, one in named.items():
        conflict = conflict_with(name, state.recipe, state.conflicts)
        if conflict is not None and (raced := _last_raced(state, name)) is not None:
            is_open = raced.decision == "unsure"
            how = "led first, and this one was not decided" if is_open else "gains more"
            state.revise_last(name, "unsure" if is_open else "rejected", f"{conflict}; the other one {how}")
        elif state.recipe.setting_of(name) is None:
            free.append(one)
    pass_s = state.scheduler.pass_s(state.recipe, len(free))
    kept_back = share_kept_back(1, 0, state.num_provisional)
    return free if state.budget.now_s() + pass_s < state.budget.moment_s(kept_back) else []


def _earlier_rank(state: TuningState, technique: str) -> int:
    """A rank from an earlier race on a smaller recipe; smaller is better. A candidate that was not raced yet ranks
    before one that was raced and did not seem to gain."""
    raced = [(one.speed, one.recipe) for one in state.verdicts if one.technique == technique and one.speed]
    if not raced:
        return 1
    speed, recipe = raced[-1]
    ground = state.speed_of(recipe.without(technique))
    gain = speed.ratio / (ground.ratio if ground is not None else 1.0)
    return 0 if gain >= LOOKED_BETTER else 3 if gain < LOOKED_WORSE else 2


def _is_addressed(state: TuningState, candidate: Candidate) -> bool:
    """Whether the recipe already addresses all findings that the candidate addresses. Less is left to gain then."""
    found = {finding.cause for finding in state.session.findings}.intersection(candidate.card.causes)
    kept = [state.techniques[choice.technique].CARD.causes for choice in state.recipe.choices]
    return bool(found) and found.issubset(itertools.chain.from_iterable(kept))


def _last_raced(state: TuningState, technique: str) -> Verdict | None:
    raced = (one for one in reversed(state.verdicts) if one.technique == technique and one.speed is not None)
    return next(raced, None)
