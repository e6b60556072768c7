"""Searches for the best recipe, from a diagnosed check: passes of selection, an ablation, and the proof. Only the proof
decides whether anything is kept. See docs/statistics.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slipstream.records import Session, Tuning
from slipstream.techniques._core.catalogue import Technique, catalogue
from slipstream.tuning.ablation import ablate
from slipstream.tuning.candidates import Candidate, propose
from slipstream.tuning.journal import Journal, facts_of
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import ProgressListener
from slipstream.tuning.proof import Proof, prove
from slipstream.tuning.result import conclude
from slipstream.tuning.rounds import could_not_start
from slipstream.tuning.selection import Selection
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RaceError
from slipstream.tuning.writable import find_writable, measure
from slipstream.wire.backend import RaceBackend

WORTH_PAIRS = 4  # a further proof with time for fewer pairs would have no interval


def tune(
    session: Session,
    backend: RaceBackend,
    order: TuneOptions,
    tell: ProgressListener,
    techniques: Mapping[str, Technique] | None = None,
) -> Tuning:
    """Runs a tuning. `session` is a diagnosed check. Raises ValueError if the options name an unknown technique, and
    RaceError if the unchanged script could not be raced. If it is interrupted, it returns what is known so far;
    with `is_resumed` a later call continues from the journal."""
    known = catalogue() if techniques is None else techniques
    candidates, refused = propose(session, order, known)
    journal = Journal(order.journal, facts_of(session, order) if order.journal else {}, order.is_resumed)
    state = TuningState(session, backend, order, tell, known, journal)
    for verdict in refused:
        state.decide(verdict)
    proofs: list[Proof] = []
    is_complete = was_interrupted = False
    try:
        _search(state, candidates, proofs)
        is_complete = True
    except RaceError as error:
        if not state.base.timings:
            raise
        state.note(f"The tuning ended early: {error}. --resume continues it.")
    except KeyboardInterrupt:
        was_interrupted = True
    finally:
        state.pool.clear()
    if journal.fault:
        state.note(journal.fault)
    if is_complete and (not state.recipe.choices or any(proof.is_kept for proof in proofs)):
        journal.delete()
    return conclude(state, proofs, is_complete, was_interrupted)


def _search(state: TuningState, candidates: Sequence[Candidate], proofs: list[Proof]) -> None:
    if not candidates:
        return
    selection, selected = Selection(state, candidates), state.journal.selected
    if selected is not None:
        state.adopt(selected.recipe, selected.gain)
        state.writable = selected.writable
        for verdict in selected.verdicts:
            state.decide(verdict)
    is_selected = selected is not None and selected.is_last
    if not is_selected:
        _enter_base(state, len(candidates))
    while True:
        if not is_selected:
            _select(state, selection)
        is_selected = False
        if not state.recipe.choices:
            break
        proofs.append(prove(state, state.recipe))
        if proofs[-1].is_open or proofs[-1].is_kept or not selection.is_time():
            break
        selection.set_aside(state.recipe)
    is_time = state.budget.left_s() > WORTH_PAIRS * state.costs.pair_s()
    if proofs and proofs[-1].is_kept and state.writable.choices and is_time:
        proofs.append(prove(state, state.writable, kind="writable"))


def _select(state: TuningState, selection: Selection) -> None:
    """Leaves the best recipe in the state, without what adds nothing, and the best one that can be written."""
    state.budget.begin_selection()
    selection.run()
    if state.pool.is_relaunching():
        state.note("Only one trial fits in memory, so trials were started again for every turn: this is slower.")
    ablate(state)
    writable = find_writable(state, selection.seen)
    if writable.choices and measure(state, writable):
        state.writable = writable
    gain = state.estimates.get(state.recipe, 0.0)
    state.journal.remember_pass(state.recipe, gain, state.verdicts, is_last=True, writable=state.writable)


def _enter_base(state: TuningState, num_candidates: int) -> None:
    """Starts the base once. What its start takes tells how long the tuning is to be."""
    begun_s = state.budget.now_s()
    failure = state.pool.enter(state.base)
    if failure:
        raise RaceError(could_not_start(state.base, failure))
    state.costs.started(state.budget.now_s() - begun_s)
    if state.budget.follow(state.costs, num_candidates):
        minutes = math.ceil(state.budget.budget_s / 30.0) / 2
        state.note(f"This takes about {minutes:g} min; change it with --budget.")
