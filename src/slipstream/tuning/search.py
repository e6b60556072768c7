"""Searches for the best recipe, starting from a diagnosed check. The search consists of passes of selection, an
ablation and a proof. After a failed proof the search may continue with another recipe. Only a proof decides whether
anything is kept. See docs/statistics.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slipstream.records import Session, Tuning
from slipstream.techniques._core.catalogue import Technique, catalogue
from slipstream.tuning.ablation import ablate
from slipstream.tuning.candidates import Candidate, propose
from slipstream.tuning.journal import Journal, facts_of
from slipstream.tuning.numerics import MOST_CONTROLS
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

WORTH_PAIRS = 4  # a proof of the writable recipe needs time for this many pairs, because fewer give no interval


def tune(
    session: Session,
    backend: RaceBackend,
    order: TuneOptions,
    tell: ProgressListener,
    techniques: Mapping[str, Technique] | None = None,
) -> Tuning:
    """Runs a tuning. `session` is a diagnosed check. Raises ValueError if the options name an unknown technique, and
    RaceError if the unchanged script could not be raced. After an interruption it returns what is known so far. A later
    call with `is_resumed` then continues from the journal."""
    known = catalogue() if techniques is None else techniques
    candidates, refused = propose(session, order, known)
    journal = Journal(order.journal, facts_of(session, order) if order.journal else {}, order.is_resumed)
    state = TuningState(session, backend, order, tell, known, journal)
    if order.is_resumed and journal.is_empty:
        state.note("There is no journal to continue for this script and these options, so the tuning starts anew.")
    for verdict in refused:
        state.decide(verdict)
    proofs: list[Proof] = []
    is_complete = was_interrupted = False
    try:
        _search(state, candidates, proofs)
        is_complete = state.runner.load.has_counted or not state.runner.load.num_rounds
    except RaceError as error:
        if not (state.base.timings or state.recipe.choices):
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
        state.continue_from(selected)
    is_selected = selected is not None and selected.is_last
    _enter_base(state, [] if is_selected else candidates)
    while True:
        if not is_selected:
            _select(state, selection)
        if not state.recipe.choices:
            break
        proof = prove(state, state.recipe, proofs)
        if proof.is_open or proof.is_kept:
            break
        selection.set_aside(state.recipe)
        if not selection.is_time():
            break
        is_selected = bool(state.recipe.choices)
    is_time = state.budget.left_s() > WORTH_PAIRS * state.costs.least_pair_s()
    if proofs and proofs[-1].is_kept and state.writable.choices and is_time:
        prove(state, state.writable, proofs, kind="writable")


def _select(state: TuningState, selection: Selection) -> None:
    """Selects the best recipe, removes the techniques that add nothing, and stores the result in the state. If `patch`
    cannot write this recipe, the state also gets a recipe that `patch` can write, if that recipe gains."""
    state.budget.begin_selection()
    selection.run()
    if state.pool.is_relaunching():
        state.note("Only one trial fits in memory, so trials were started again for every turn: this is slower.")
    ablate(state)
    writable = find_writable(state, selection.seen)
    if writable.choices and measure(state, writable):
        state.writable = writable
    state.remember_pass(is_last=True)


def _enter_base(state: TuningState, candidates: Sequence[Candidate]) -> None:
    """Starts the base once. The default budget follows from the duration of this start. `candidates` is empty if only
    the proof is left."""
    begun_s = state.budget.now_s()
    failure = state.pool.enter(state.base)
    if failure:
        raise RaceError(could_not_start(state.base, failure))
    state.pool.release(state.base)
    state.costs.started(state.budget.now_s() - begun_s)
    num_slow = sum(one.card.is_slow_to_start for one in candidates)
    if state.budget.follow(state.costs, len(candidates), num_slow, MOST_CONTROLS if candidates else 0):
        minutes = math.ceil(state.budget.budget_s / 30.0) / 2
        state.tell.note(f"This takes up to {minutes:g} min; change it with --budget.")
