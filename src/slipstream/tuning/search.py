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

LOOKED_BETTER, LOOKED_WORSE = 1.03, 0.75  # when it was raced before: then it comes first, or last
FEW_OTHERS = 3  # that are turned to: every one of them must start anew
FEW_NAMED = 4  # candidates that a longer budget is told for
LATER = 0.25  # of alpha, from pass to pass: what was raced before has had a chance already


def tune(
    session: Session,
    backend: RaceBackend,
    order: TuneOptions,
    tell: ProgressListener,
    techniques: Mapping[str, Technique] | None = None,
) -> Tuning:
    """`session` is a diagnosed check. ValueError: the order names what there is not. RaceError: the script as it is
    could not be raced. Interrupted, it returns what is known; the journal goes on from there."""
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
        state.note("Interrupted. The same command goes on from here." if journal.is_kept else "Interrupted.")
    finally:
        state.pool.clear()
    for choice in state.provisional():
        state.give_up(choice, "it was ahead when the tuning ended, and had not been proved")
    if journal.fault:
        state.note(journal.fault)
    if is_complete:
        journal.delete()
    return conclude(state, total, is_complete, was_interrupted)


def _search(state: TuningState, candidates: Sequence[Candidate]) -> Comparison | None:
    state.conflicts = find_conflicts({ident: technique.CARD for ident, technique in state.techniques.items()})
    if state.journal.verdicts:
        state.note(f"Resumed: {len(state.journal.verdicts)} verdicts stand from the tuning that was interrupted.")
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
    """Who might still be found to gain, had the recipe in hand to go: what lost on top of that may win without it."""
    in_hand = {choice.technique for choice in state.recipe.choices}
    out = ruled_out(state.verdicts, {one.technique for one in candidates}) | in_hand
    out |= {one.technique for one in state.verdicts if one.decision == "rejected" and len(one.recipe.choices) < 2}
    return [one for one in candidates if one.is_keepable and one.technique not in out]


def _turn_to(state: TuningState, others: Sequence[Candidate], fallen: Comparison, alpha: float) -> None:
    """What was built on was luck, and there is time: the best of the others go on where they stood. Once, for every
    whole recipe that is raced has half of alpha."""
    state.note(f"{fallen.trials.recipe} did not hold in the end: there was time to turn to others.")
    state.pool.leave(fallen.trials)
    state.pool.leave(fallen.anchor)
    state.ground = Recipe()
    state.hope_s = state.budget.ahead_s(HOPE_SHARE)
    best = sorted(others, key=lambda one: -state.race_of(one.first, alpha).training_time())[:FEW_OTHERS]
    _build(state, others, best, alpha, num_controls=0)


def _build(
    state: TuningState,
    candidates: Sequence[Candidate],
    left: list[Candidate],
    alpha: float,
    begun: Sequence[Comparison] = (),
    num_controls: int = 1,
) -> None:
    """Pass by pass, each on top of what those before it have won: what gains nothing where the step computes may gain
    much where it waits, and the other way round."""
    built = list[Winner]()
    while left:
        winners = race_alone(state, left, alpha, begun, num_controls)
        if state.pool.is_relaunching():
            state.note(
                "Memory holds one rider at a time: they took turns by relaunching, which is slower and less exact."
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
    """Where steps or starts are so long that not one was raced: how much would do."""
    single = [one for one in state.verdicts if one.kind == "single" and one.decision != "not_applicable"]
    waiting = {one.technique for one in single}
    if not waiting or any(one.decision != "unsure" or one.speed is not None for one in single):
        return
    num_named = min(len(waiting), FEW_NAMED)
    minutes = math.ceil(state.scheduler.whole_s(num_named) / 60)
    which = "them" if num_named == len(waiting) else f"the {num_named} most promising"
    state.note(f"Steps and starts are long here, and none was raced: --budget {minutes}m would do for {which}.")


def _lay_ground(state: TuningState, candidates: Sequence[Candidate], alpha: float) -> list[Comparison]:
    """What makes every start of a script as fast as the next comes first. Where it wins, all else is raced on top of
    it: there a difference between two riders is a difference between their recipes. Gives the contests that go on."""
    winners, begun = race_ground(state, [one for one in candidates if one.card.is_ground], alpha)
    if winners:
        state.recipe = state.ground = Recipe((winners[0].choice,))
        state.note(f"{state.ground} comes first: what follows is raced on top of it.")
        return []
    return begun


def _left(state: TuningState, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Who may gain on top of what is kept now, where there is time: those that merely gained too little before, those
    that had nothing to do, and those that were not raced since another led that claims the same: in its place."""
    asked = {one.technique for one in candidates}
    seen = {one.technique for one in state.verdicts if not state.had_nothing_to_do(one.technique)}
    out = ruled_out(state.verdicts, asked | seen)
    was_slowing = any(one.kind == "single" and one.technique not in asked for one in state.journal.verdicts)
    observation = Observation(state.session, state.scheduler.is_slowing or was_slowing)
    late = latecomers(observation, state.order, state.techniques, state.recipe, out)
    named = {one.technique: one for one in late}  # first: it is this recipe that they suit
    for one in sorted(candidates, key=lambda one: (_training_time(state, one.technique), _is_cured(state, one))):
        if one.technique not in out and one.is_keepable:
            named.setdefault(one.technique, one)
    free = []
    for name, one in named.items():
        conflict = conflict_with(name, state.recipe, state.conflicts)
        if conflict is not None and (raced := _last_raced(state, name)) is not None:
            is_open = raced.decision == "unsure"
            how = "led first, and this was not decided" if is_open else "gains more"
            state.revise_last(name, "unsure" if is_open else "rejected", f"{conflict}; the other one {how}")
        elif state.recipe.setting_of(name) is None:
            free.append(one)
    pass_s = state.scheduler.pass_s(state.recipe, len(free))
    kept_back = share_kept_back(1, 0, state.num_provisional)
    return free if state.budget.now_s() + pass_s < state.budget.moment_s(kept_back) else []


def _training_time(state: TuningState, technique: str) -> int:
    """How it looked when it was raced before, on top of less: the smaller the better. Who was not raced yet may gain
    more than one that was and did not look like a gain."""
    raced = [(one.speed, one.recipe) for one in state.verdicts if one.technique == technique and one.speed]
    if not raced:
        return 1
    speed, recipe = raced[-1]
    ground = state.speed_of(recipe.without(technique))
    gain = speed.ratio / (ground.ratio if ground is not None else 1.0)
    return 0 if gain >= LOOKED_BETTER else 3 if gain < LOOKED_WORSE else 2


def _is_cured(state: TuningState, candidate: Candidate) -> bool:
    """All that was found and that it answers something in the recipe answers already: less is left to gain there than
    where nothing was tried yet."""
    found = {finding.cause for finding in state.session.findings}.intersection(candidate.card.causes)
    kept = [state.techniques[choice.technique].CARD.causes for choice in state.recipe.choices]
    return bool(found) and found.issubset(itertools.chain.from_iterable(kept))


def _last_raced(state: TuningState, technique: str) -> Verdict | None:
    raced = (one for one in reversed(state.verdicts) if one.technique == technique and one.speed is not None)
    return next(raced, None)
