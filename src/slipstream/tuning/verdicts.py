"""Turns a finished comparison into a verdict with numbers and a reason."""

from __future__ import annotations

import msgspec

from slipstream.diagnose.statistics import median
from slipstream.numbers import in_bytes, plural, times
from slipstream.records import Choice, Decision, Numerics, Speed, TrialRecord, Verdict
from slipstream.report.text.numerics import describe_numerics
from slipstream.tuning.block_length import typical_step_s
from slipstream.tuning.candidates import HOPELESS
from slipstream.tuning.comparison import WORTH, Comparison
from slipstream.tuning.payback import never_pays, payback_steps
from slipstream.tuning.state import TuningState

SLOWER_BY = 1.03  # if there is no interval


def rule(
    state: TuningState, comparison: Comparison, choice: Choice, is_keepable: bool = True, through: Speed | None = None
) -> Verdict:
    """The verdict on a technique against its anchor, or on a further setting against the best one. `through` is the
    anchor's speed against the base."""
    record = state.pool.record(comparison.trials)
    verdict = describe(state, comparison, choice, record, through)
    if comparison.outcome != "faster":
        decision, reason = _lost(comparison)
        numerics = state.quick_check(comparison.trials, record) if comparison.sequence.num_rounds else None
        if state.techniques[choice.technique].CARD.purpose == "memory" and decision == "rejected":
            reason = _price(state, verdict, reason)
        return _with(verdict, decision, reason, numerics)
    assert verdict.speed is not None
    never = never_pays(verdict.payback_steps, state.session)
    if never or not is_keepable:
        unasked = f"faster, {times(verdict.speed)}, but kept only on request: --only {choice.technique} keeps it"
        return _with(verdict, "rejected", never or unasked, state.quick_check(comparison.trials, record))
    return judge_numerics(state, comparison, verdict, record)


def judge_numerics(state: TuningState, comparison: Comparison, verdict: Verdict, record: TrialRecord) -> Verdict:
    """Checks the numerics of a technique that is faster. It is kept only if they are sound."""
    recipe, claim = comparison.trials.recipe, state.claim(comparison.trials.recipe)
    state.pool.release(comparison.trials)  # the controls may need its memory
    numerics_check = state.numerics_check
    numerics = numerics_check.quick_check(claim, record)
    # If the quick check is enough here, the controls run only once, for the whole recipe.
    if numerics_check.needs_proof(claim, record) or not numerics.is_sound:
        numerics = numerics_check.full_check(claim, record, comparison.trials.num_steps)
    if numerics_check.needs_proof(claim, record) and numerics.is_sound is not False:
        numerics = numerics_check.prove(claim, recipe, comparison.trials.num_steps)
    if numerics.is_sound is None:
        return _with(
            verdict, "unsure", f"faster, but its numerics could not be checked: {describe_numerics(numerics)}", numerics
        )
    if not numerics.is_sound:
        return _with(verdict, "rejected", f"faster, but not sound: {describe_numerics(numerics)}", numerics)
    return _with(verdict, "kept", _paid(verdict), numerics)


def describe(
    state: TuningState, comparison: Comparison, choice: Choice, record: TrialRecord, through: Speed | None = None
) -> Verdict:
    """A verdict with everything but the decision. The speed is against the base, whatever the anchor was."""
    step_s = typical_step_s(comparison.trials.timings or record.timings)
    speed = comparison.speed_against_base(through)
    # From the paired ratio, not from two medians, because the machine's speed may have changed between them.
    then_s = state.base_step_s() / speed.ratio if speed is not None else None
    one_off = state.one_off_s(record, then_s) if step_s is not None else 0.0
    base_rate = samples_per_s(state, state.pool.record(state.base), state.base_step_s())
    verdict = Verdict(
        choice.technique,
        choice.setting,
        "unsure",
        "",
        speed=speed,
        step_ms=step_s * 1e3 if step_s is not None else None,
        samples_per_s=samples_per_s(state, record, step_s) if step_s is not None else None,
        batch_size=batch_size(state),
        peak_bytes=record.device_peak_bytes or record.peak_bytes or None,
        one_off_s=one_off,
        payback_steps=payback_steps(one_off, state.base_step_s(), then_s) if then_s is not None else None,
        recipe=comparison.trials.recipe,
    )
    return paired(verdict, state.base_step_s() * 1e3, base_rate)


def paired(verdict: Verdict, base_step_ms: float, base_samples_per_s: float | None) -> Verdict:
    """Derives the step time and rate from the speed ratio, so that a row is consistent even if the machine's speed
    drifts."""
    if verdict.speed is None or verdict.step_ms is None:
        return verdict
    rate = base_samples_per_s * verdict.speed.ratio if base_samples_per_s else verdict.samples_per_s
    return msgspec.structs.replace(verdict, step_ms=base_step_ms / verdict.speed.ratio, samples_per_s=rate)


def _lost(comparison: Comparison) -> tuple[Decision, str]:
    speed = comparison.speed()
    if comparison.outcome == "failed":
        return "failed", comparison.failure
    if comparison.outcome == "declined":
        return "not_applicable", comparison.failure
    if comparison.outcome in ("no_effect", "slower"):
        return (
            "rejected",
            comparison.failure if comparison.outcome == "no_effect" else f"much slower: {comparison.failure}",
        )
    if comparison.outcome == "undecided" and comparison.failure:
        return "unsure", f"the race ended early: {comparison.failure}"
    if speed is None and comparison.trials.timings:
        return "unsure", "no block of it could be timed: something was compiled or started in each"
    if speed is None:
        return "unsure", "not raced: too little time for it; a longer --budget helps"
    if comparison.outcome == "not_faster":
        than = f" than {comparison.anchor.name}" if comparison.anchor.recipe.choices else ""
        if speed.is_bounded:
            return "rejected", f"slower{than}" if speed.high < 1.0 else f"no faster{than}: {_at_most(speed)}"
        return "rejected", f"slower{than}" if speed.ratio < 1.0 / SLOWER_BY else f"no faster{than}"
    if speed.high < 1.0 + WORTH:
        return "rejected", f"no relevant gain: {_at_most(speed)}"
    if speed.ratio <= HOPELESS:  # it is not raced again, even if there is time
        return "rejected", f"far behind when it was paused for others: {times(speed)}"
    return "unsure", f"not decided in {plural(speed.num_rounds, 'round')}: {times(speed)}; a longer --budget helps"


def _at_most(speed: Speed) -> str:
    return f"at most {speed.high:.2f}x"


def _paid(verdict: Verdict) -> str:
    if verdict.payback_steps is None:
        return "faster and sound"
    return f"faster and sound; {verdict.one_off_s:.0f} s once, paid off after {verdict.payback_steps:,} steps"


def _with(verdict: Verdict, decision: Decision, reason: str, numerics: Numerics | None) -> Verdict:
    return msgspec.structs.replace(verdict, decision=decision, reason=reason, numerics=numerics)


def _price(state: TuningState, verdict: Verdict, reason: str) -> str:
    """The cost and benefit of a technique that saves memory, so that the user can decide."""
    base = state.pool.record(state.base)
    before = base.device_peak_bytes or base.peak_bytes
    if verdict.speed is None or not verdict.peak_bytes or not before:
        return reason
    setting = verdict.setting if not isinstance(verdict.setting, str) else f'"{verdict.setting}"'
    line = f"{verdict.technique} = {str(setting).lower() if setting is True else setting}"
    peaks = f"{in_bytes(verdict.peak_bytes)} at the peak against {in_bytes(before)}"
    return f"costs time, {times(verdict.speed)}, for {peaks}: if that is worth it, write {line} under [recipe]"


def samples_per_s(state: TuningState, record: TrialRecord, step_s: float) -> float | None:
    """Samples per second for this step time, so that a row is consistent. Trials count the samples of their loader.
    Without a loader, the number of samples in a step is that of the check."""
    summary = state.session.summary
    per_step = [
        timing.num_samples / timing.num_steps for timing in record.timings if timing.num_samples and timing.num_steps
    ]
    num_samples = median(per_step) if per_step else summary.samples_per_step if summary is not None else 0.0
    return num_samples / step_s if num_samples and step_s else None


def batch_size(state: TuningState) -> int | None:
    """The number of samples in a step, from the check."""
    summary = state.session.summary
    return round(summary.samples_per_step) or None if summary is not None else None
