"""The final race of the whole recipe against the base, with new trials. A recipe that shows no gain here is not
kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from slipstream.numbers import plural, times
from slipstream.records import Choice, Decision, Numerics, Recipe, Speed, TrialRecord, Verdict
from slipstream.report.text.numerics import describe_numerics
from slipstream.tuning.comparison import LUCK, Comparison, Outcome
from slipstream.tuning.numerics import PROOF_SHARE
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RaceError, RecipeTrials
from slipstream.tuning.verdicts import describe

NUM_CONTROLS = 1
CONTROL_ROUNDS = 32  # then the recipe gets the time, because the user is shown its interval
TURNING_SHARE = 0.15  # of the budget: with less left there is no time for other candidates
AGAIN_SHARE = 0.1  # of the remaining time: if starts take longer, the race is not restarted
OVER = 0.0  # a time in the past
MIN_ROUNDS = 12  # with fewer rounds the final race cannot overrule the single races
_OUT: tuple[Outcome, ...] = ("failed", "slower", "declined", "no_effect")


def race_total(state: TuningState, recipe: Recipe, is_last: bool = True) -> tuple[Comparison, Recipe]:
    """Returns the comparison, and the recipe if it is kept, else an empty one. `is_last`: there are no other
    candidates."""
    trials, base = _fresh_trials(state, recipe), _fresh_base(state)
    comparison = state.comparison(trials, base, goal="measure")
    state.numerics_check.bases.append(base)
    if base.trial is None and trials.trial is None:
        state.pool.renew()
    _race_in_halves(state, comparison, is_last)
    record = state.pool.record(trials)
    is_proved = not state.num_provisional
    lost = _doubt(comparison, state.order.alpha, state.noise.margin(base), is_proved)
    numerics = _check_numerics(state, comparison, record) if lost is None else state.quick_check(trials, record)
    decision, reason = _weigh(comparison, numerics, lost)
    verdict = describe(state, comparison, Choice("recipe"), record)
    earlier = _earlier_proof(state, recipe) if comparison.outcome not in _OUT else None
    if comparison.speed() is None and earlier is not None:
        numerics, decision, reason = earlier.numerics, "kept", _untimed(comparison, earlier)
        verdict = msgspec.structs.replace(verdict, speed=earlier.speed, step_ms=earlier.step_ms)
    state.decide(msgspec.structs.replace(verdict, decision=decision, reason=reason, numerics=numerics, kind="total"))
    if decision == "kept":
        _note_trend(state, comparison)
        for choice in state.provisional():
            state.revise(choice, "kept", _reason(recipe, reason))
        return comparison, recipe
    for choice in recipe.choices:
        state.revise(choice, decision, f"won its own race, but the whole recipe {reason}")
    return comparison, Recipe()


def _earlier_proof(state: TuningState, recipe: Recipe) -> Verdict | None:
    """The verdict by which exactly this recipe was kept, if its whole interval lies above 1."""
    alike = [one for one in state.verdicts if one.kind in ("single", "cumulative") and one.recipe == recipe]
    return next((one for one in reversed(alike) if one.decision == "kept" and _is_beyond_one(one.speed)), None)


def _is_beyond_one(speed: Speed | None) -> bool:
    return speed is not None and speed.is_bounded and speed.low > 1.0


def _untimed(comparison: Comparison, earlier: Verdict) -> str:
    assert earlier.speed is not None
    why = f": {comparison.failure}" if comparison.failure else ""
    return f"{times(earlier.speed)} in its own race; the final race could not be timed{why}"


def _note_trend(state: TuningState, comparison: Comparison) -> None:
    """Adds a note if the gain changes during the training: the total covers only the steps of the race."""
    gains, num_steps = comparison.trend(), comparison.trials.num_steps
    has_restarted = any(timing.is_last for timing in comparison.trials.timings)
    if gains is not None and not has_restarted:
        at_first, later = gains
        state.note(
            f"The gain changes during the training: {at_first:.2f}x at first, {later:.2f}x in the last of"
            f" {num_steps:,} steps."
        )


def _race_in_halves(state: TuningState, comparison: Comparison, is_last: bool) -> None:
    """Races in two halves with different processes, because a process may be fast or slow by chance for its whole
    life."""
    recipe, budget = comparison.trials.recipe, state.budget
    is_owed = _owes_proof(state, recipe, state.pool.record(state.trials(recipe)))
    end_s = budget.moment_s(state.numerics_check.share_owed(state.claim(recipe)) + PROOF_SHARE * is_owed)

    def deadline_s() -> float:
        is_over = not is_last and comparison.is_unpromising() and budget.now_s() < budget.moment_s(TURNING_SHARE)
        return OVER if is_over else end_s

    num_controls = min(NUM_CONTROLS, state.pool.num_challengers() - 1)
    beside = [state.control_comparison(comparison.anchor, CONTROL_ROUNDS) for _ in range(num_controls)]
    half_s = budget.ahead_s(0.5) if _may_start_again(state, recipe) else end_s
    _race(state, [comparison, *beside], lambda: min(half_s, deadline_s()))
    if half_s < end_s and comparison.outcome in ("undecided", "measured") and deadline_s() > OVER:
        state.pool.leave(comparison.trials)
        state.pool.leave(comparison.anchor)
        state.pool.renew()
        comparison.start_again()
        _race(state, [comparison], deadline_s)


def _race(state: TuningState, comparisons: Sequence[Comparison], deadline_s: Callable[[], float]) -> None:
    """Runs rounds until the deadline. If the base fails, the rounds so far count. Raises RaceError if there are
    none."""
    total = comparisons[0]
    try:
        state.scheduler.race(comparisons, deadline_s, lambda comparison: None)
    except RaceError as error:
        if not total.sequence.num_rounds:
            raise
        total.abandon(str(error))
        state.note(f"The final race ended early: {error}.")


def _may_start_again(state: TuningState, recipe: Recipe) -> bool:
    startup_s = sum(state.pool.record(trials).startup_s for trials in (state.base, state.trials(recipe)))
    return not state.pool.is_relaunching() and startup_s < AGAIN_SHARE * state.budget.left_s()


def _reason(recipe: Recipe, reason: str) -> str:
    """The reason for keeping a technique that was never proved by itself."""
    return reason if len(recipe.choices) == 1 else f"what it adds was not decided; the whole recipe: {reason}"


def _fresh_trials(state: TuningState, recipe: Recipe) -> RecipeTrials:
    """New trials of the recipe: the process that won may be fast by chance. If a start takes more than a tenth of the
    remaining time, the old process continues."""
    known = state.trials(recipe)
    startup_s = state.pool.record(known).startup_s
    if known.trial is not None and startup_s > 0.1 * state.budget.left_s():
        return known
    return state.fresh_trials(recipe)


def _fresh_base(state: TuningState) -> RecipeTrials:
    """New trials of the base: the process that lost to the candidates may be slow by chance."""
    startup_s = state.pool.record(state.base).startup_s
    if not state.base.timings or state.pool.is_relaunching() or startup_s > 0.1 * state.budget.left_s():
        return state.base
    state.pool.leave(state.base)
    return RecipeTrials("base", Recipe())


def _owes_proof(state: TuningState, recipe: Recipe, record: TrialRecord) -> bool:
    """Whether the recipe still needs a numerics proof. A single technique may have been proved when it won. Several
    techniques are proved together."""
    is_open = len(recipe.choices) > 1 or not state.numerics_check.has_proved(recipe)
    return is_open and state.numerics_check.needs_proof(state.claim(recipe), record)


def _check_numerics(state: TuningState, comparison: Comparison, record: TrialRecord) -> Numerics | None:
    """Checks the numerics after the race, because a resumed tuning has no fingerprint of the base before it. None:
    nothing was recorded."""
    if comparison.outcome in _OUT or state.quick_check(comparison.trials, record) is None:
        return None
    recipe, num_steps = comparison.trials.recipe, comparison.trials.num_steps
    claim = state.claim(recipe)
    numerics = state.numerics_check.full_check(claim, record, num_steps, is_last=True)
    if _owes_proof(state, recipe, record) and numerics.is_sound is not False:
        numerics = state.numerics_check.prove(claim, recipe, num_steps)
    return numerics


def _doubt(comparison: Comparison, alpha: float, margin: float, is_proved: bool) -> tuple[Decision, str] | None:
    """Why the recipe is not kept, whatever its numerics are. No controls need to run then. `is_proved`: each technique
    was proved in a race of its own."""
    if comparison.outcome == "slower":
        return "rejected", f"was slower in the final race: {comparison.failure}"
    if comparison.outcome in _OUT:
        return "failed", f"failed in the final race: {comparison.failure}"
    speed = comparison.speed()
    if speed is None:
        return "unsure", "could not be timed in the final race"
    if comparison.sequence.is_not_faster(0.0, alpha):
        return "rejected", f"was no faster in the final race: {times(speed)}"
    if speed.num_rounds >= MIN_ROUNDS and not comparison.is_proved():
        return "unsure", f"was not certainly faster in the final race: {times(speed)}"
    if comparison.promise() <= 1.0 + margin:
        return "unsure", f"gained {times(speed)} in the final race, within the noise of the A/A control ({margin:.0%})"
    if comparison.promise() <= 1.0 + LUCK:
        return "unsure", f"gained {times(speed)} in the final race, no more than two starts may differ by chance"
    if comparison.promise_of_last_start() <= 1.0:
        return "unsure", f"was no faster when it was started again: {times(speed)} in total"
    if not is_proved and not comparison.is_proved():
        return "unsure", f"was not certainly faster in the remaining time: {times(speed)}"
    return None


def _weigh(
    comparison: Comparison, numerics: Numerics | None, lost: tuple[Decision, str] | None
) -> tuple[Decision, str]:
    if lost is not None:
        return lost
    if numerics is not None and numerics.is_sound is False:
        return "rejected", f"is not sound: {describe_numerics(numerics)}"
    if numerics is None or numerics.is_sound is None:
        why = f": {describe_numerics(numerics)}" if numerics is not None else ""
        return "unsure", f"was faster in the final race, but its numerics could not be checked{why}"
    speed = comparison.speed()
    assert speed is not None
    if not comparison.is_proved():
        return (
            "kept",
            f"by its own race; there was time for {plural(speed.num_rounds, 'round')} of the whole recipe:"
            f" {times(speed)}",
        )
    return "kept", f"{times(speed)} against the unchanged script"
