"""The proof. It compares the whole recipe with the base in pairs of new processes, which are never forked. Each pair is
one observation. Rounds of the selection do not count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev
from typing import Literal

import msgspec

from slipstream.diagnose.statistics import hodges_lehmann
from slipstream.records import Numerics, Recipe, Speed, Verdict
from slipstream.tuning import verdicts
from slipstream.tuning.budget import BLOCKS_PER_START, MOST_PAIR_ROUNDS, PAIR_ROUNDS, USUAL_PAIRS
from slipstream.tuning.rounds import Race, could_not_start
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RaceError, RecipeTrials
from slipstream.verify.t_sequence import TSequence

WHOLE = "recipe"  # stands in place of a technique in the verdict on the whole recipe
MOST_PAIRS = 32  # so many pairs prove a gain as large as the spread of the pairs in nine of ten tunings
# A pair ends early enough to leave time for this many pairs. The interval of fewer pairs is more than three times as
# long as their spread.
ENOUGH_PAIRS = 12
# After this many pairs the proof ends if their mean gain does not exceed the margin. If a recipe really gains 10% and
# the spread of the pairs is as large as this gain, the proof ends by mistake in two of 100 tunings.
FUTILE_PAIRS = 6
NARROW = 0.1  # a proved gain gets more pairs until the interval of its log ratio is at most this long
SMALL_BESIDE = 0.5  # block noise below this share of the spread of the pairs widens the spread by at most an eighth
# The first pair, the fewest rounds of a pair and the numerics check may exceed the budget by this share.
GRACE_SHARE = 0.05
# If other programs disturb both processes of the pairs alike, the difference between the numbers of their disturbed
# blocks exceeds this many standard deviations in one of 1000 proofs.
UNLIKELY_EXCESS = 3.3

ProofKind = Literal["total", "writable"]
Outcome = Literal["proved", "refuted", "no_gain", "not_proved", "measured", "not_checked", "failed", "other_load"]


class Proof(msgspec.Struct):
    recipe: Recipe
    outcome: Outcome
    speed: Speed | None
    numerics: Numerics | None = None
    reason: str = ""  # why the trial failed, or ""

    @property
    def is_kept(self) -> bool:
        return self.outcome == "proved" and self.numerics is not None and self.numerics.is_sound is True

    @property
    def is_open(self) -> bool:
        """Whether more time could prove the recipe."""
        return self.outcome in ("not_proved", "measured", "not_checked", "other_load")


def prove(state: TuningState, recipe: Recipe, proofs: list[Proof], kind: ProofKind = "total") -> Proof:
    """Races pairs until they decide about the recipe or the time is over. Adds the proof to `proofs` and returns it.
    Pairs of an earlier, interrupted tuning count. If RaceError or KeyboardInterrupt interrupts the pairs, the function
    adds a proof from the pairs so far, if there are any, and raises the exception again."""
    number, earlier = state.journal.begin_proof(recipe)
    sequence = TSequence(state.order.alpha / 2**number)
    for known in earlier:
        sequence.add(known)
    base, whole = RecipeTrials("base", Recipe(), is_cold=True), RecipeTrials("candidate", recipe, is_cold=True)
    race = Race()
    interruption: RaceError | KeyboardInterrupt | None = None
    try:
        while not _is_over(state, recipe, sequence):
            state.budget.extend((USUAL_PAIRS - sequence.num_pairs) * state.costs.pair_s())
            log_ratio = _pair(state, race, base, whole, sequence)
            if id(whole) in race.failures or id(whole) in race.inert:
                break
            if log_ratio is not None:
                sequence.add(log_ratio)
                state.journal.remember_pair(recipe, log_ratio)
    except (RaceError, KeyboardInterrupt) as error:
        if not sequence.num_pairs:
            raise
        interruption = error
    finally:
        state.pool.leave(base)
        state.pool.leave(whole)
    proof = Proof(
        recipe, _outcome(state, sequence, race, base, whole), sequence.speed() if sequence.num_pairs else None
    )
    failure = race.failures.get(id(whole))
    proof.reason = str(failure) if failure is not None else ""
    if proof.outcome == "proved" and interruption is None:
        proof.numerics = verdicts.judge_numerics(state, whole, state.budget.end_s(-GRACE_SHARE))
    elif proof.outcome == "proved":  # after an interruption no further trial may run
        proof.numerics = state.numerics_check.quick_check(state.claim(recipe), state.pool.record(whole))
        if not proof.numerics.is_sound:
            proof.outcome, proof.numerics = "not_checked", None
    if proof.numerics is not None and proof.numerics.basis == "no_time":
        proof.outcome = "not_checked"
    proofs.append(proof)
    _decide(state, proof, whole, kind)
    if interruption is not None:
        raise interruption
    return proof


def _is_over(state: TuningState, recipe: Recipe, sequence: TSequence) -> bool:
    num_pairs = sequence.num_pairs
    margin = state.order.margin
    if num_pairs >= MOST_PAIRS or sequence.is_below(margin):
        return True
    if _seems_useless(state, sequence):
        return True
    needed_s = state.costs.least_pair_s()
    if sequence.is_above(margin):
        if sequence.width() <= NARROW:
            return True
        needed_s += state.numerics_check.controls_s(state.claim(recipe))
    return state.budget.now_s() + needed_s > state.budget.end_s(0.0 if num_pairs else -GRACE_SHARE)


def _seems_useless(state: TuningState, sequence: TSequence) -> bool:
    return sequence.num_pairs >= FUTILE_PAIRS and sequence.speed().ratio <= 1.0 + state.order.margin


def _pair(state: TuningState, race: Race, base: RecipeTrials, whole: RecipeTrials, sequence: TSequence) -> float | None:
    """Races new processes of the base and the recipe. Returns the typical log ratio of their rounds, or None if no
    round was timed. The race ends early enough to leave time for ENOUGH_PAIRS pairs in all. Raises RaceError if the
    base fails."""
    first = len(race.rounds)
    begun_s = state.budget.now_s()
    planned_s = state.budget.left_s() / max(1, ENOUGH_PAIRS - sequence.num_pairs)
    running = state.runner.start([base, whole], race)
    started_s = state.budget.now_s()
    end_s = min(begun_s + planned_s, started_s + BLOCKS_PER_START * (started_s - begun_s))
    state.tell.racing([trials.name for trials in running])
    if base not in running:
        raise RaceError(could_not_start(base, race.failures[id(base)]))
    log_ratios: list[float] = []
    while len(running) == 2 and not race.failures and not _is_timed(state, log_ratios, sequence.spread(), end_s):
        state.runner.run_round(race, running, base)
        log_ratios = Race(rounds=race.rounds[first:]).log_ratios(whole, base)
    state.tell.racing([])
    if id(base) in race.failures:
        raise RaceError(f"{base.name} failed: {race.failures[id(base)]}")
    return hodges_lehmann(log_ratios) if log_ratios else None


def _is_timed(state: TuningState, log_ratios: Sequence[float], spread: float, end_s: float) -> bool:
    """Whether a pair has enough rounds. A pair with PAIR_ROUNDS rounds or more has enough if the noise of its blocks is
    small beside the spread of the pairs, if it has MOST_PAIR_ROUNDS rounds, or if its time is over. A pair with fewer
    rounds ends only if the budget is exceeded by GRACE_SHARE."""
    num_rounds, now_s = len(log_ratios), state.budget.now_s()
    if num_rounds < PAIR_ROUNDS:
        return now_s >= state.budget.end_s(-GRACE_SHARE)
    error = stdev(log_ratios) / math.sqrt(num_rounds)
    is_precise = error < SMALL_BESIDE * spread
    return is_precise or num_rounds >= MOST_PAIR_ROUNDS or now_s >= min(end_s, state.budget.end_s())


def _outcome(state: TuningState, sequence: TSequence, race: Race, base: RecipeTrials, whole: RecipeTrials) -> Outcome:
    if id(whole) in race.failures or id(whole) in race.inert:
        return "failed"
    if _is_loaded_unevenly(race, base, whole):
        return "other_load"
    if sequence.is_above(state.order.margin):
        return "proved"
    if sequence.is_below(state.order.margin):
        return "refuted"
    if _seems_useless(state, sequence):
        return "no_gain"
    return "measured" if math.isinf(sequence.width()) else "not_proved"


def _is_loaded_unevenly(race: Race, base: RecipeTrials, whole: RecipeTrials) -> bool:
    """Whether other programs disturbed one of the two trials far more often than the other. In this case the load may
    come from the trial itself, and discarding its rounds may bias the result."""
    ours, theirs = race.loaded.get(id(whole), 0), race.loaded.get(id(base), 0)
    return abs(ours - theirs) > UNLIKELY_EXCESS * math.sqrt(max(1, ours + theirs))


def _decide(state: TuningState, proof: Proof, whole: RecipeTrials, kind: ProofKind) -> None:
    verdict = Verdict(WHOLE, True, "unsure", proof.reason, recipe=proof.recipe, kind=kind, cause=proof.outcome)
    verdict = verdicts.measured(state, verdict, state.pool.record(whole), proof.speed)
    verdict = msgspec.structs.replace(verdict, decision=_DECISIONS[proof.outcome])
    if proof.numerics is not None:
        verdict = verdicts.with_numerics(verdict, proof.numerics)
    state.decide(verdict)


_DECISIONS = {
    "proved": "kept",
    "refuted": "rejected",
    "no_gain": "rejected",
    "not_proved": "unsure",
    "measured": "unsure",
    "not_checked": "unsure",
    "failed": "failed",
    "other_load": "unsure",
}
