"""Makes verdicts: what was measured of a recipe, and why it is kept or not."""

from __future__ import annotations

import math

import msgspec

from slipstream.diagnose.statistics import median
from slipstream.diagnose.steps.training_time import training_length
from slipstream.records import Choice, Decision, Failure, Numerics, Recipe, Speed, TrialRecord, Verdict, VerdictCause
from slipstream.records.race import FARTHEST
from slipstream.tuning.payback import payback_steps, pays_within
from slipstream.tuning.state import TuningState
from slipstream.tuning.successive_halving import Entry
from slipstream.tuning.trials import RecipeTrials


def of_arm(state: TuningState, entry: Entry, anchor: Recipe, least_gain: float) -> Verdict:
    """Returns the verdict on an arm after the selection: whether the arm gains, gains less than others, or failed."""
    verdict = _measured(state, entry, anchor)
    if entry.inert is not None:
        decision: Decision = "not_applicable" if entry.inert.cause == "declined" else "rejected"
        return msgspec.structs.replace(
            verdict, decision=decision, cause=entry.inert.cause, reason=entry.inert.reason, other=entry.inert.technique
        )
    if entry.failure is not None:
        return _of_failure(verdict, entry.failure)
    if entry.gain is None:
        return msgspec.structs.replace(verdict, decision="unsure", cause="untimed")
    cause: VerdictCause = "gains" if entry.gain > least_gain else "no_gain"
    if cause == "gains" and not entry.is_on_last_rung:
        cause = "outpaced"
    if cause == "gains" and not pays_within(verdict.payback_steps, training_length(state.session)[0]):
        num_steps = round(training_length(state.session)[0] or 0)
        return msgspec.structs.replace(verdict, cause="never_pays", num_training_steps=num_steps)
    if cause == "gains" and not entry.arm.candidate.is_keepable:
        cause = "opt_in"
    return msgspec.structs.replace(verdict, decision="kept" if cause == "gains" else "rejected", cause=cause)


def outpaced(verdict: Verdict) -> Verdict:
    """Returns the verdict on an arm if another setting of its technique gained more."""
    return msgspec.structs.replace(verdict, decision="rejected", cause="outpaced")


def not_raced(choice: Choice) -> Verdict:
    return Verdict(choice.technique, choice.setting, "unsure", cause="not_raced", recipe=Recipe((choice,)))


def _of_failure(verdict: Verdict, failure: Failure) -> Verdict:
    if failure.kind == "ended":
        return msgspec.structs.replace(verdict, decision="unsure", cause="untimed", reason=str(failure))
    return msgspec.structs.replace(verdict, decision="failed", cause="failed", reason=str(failure))


def judge_numerics(state: TuningState, trials: RecipeTrials, deadline_s: float) -> Numerics:
    """Checks the numerics of a recipe that is faster. Runs the controls that the check needs and for which there is
    time before the deadline."""
    recipe, claim = trials.recipe, state.claim(trials.recipe)
    state.pool.leave(trials)  # the controls may need the memory of this trial
    record, numerics_check = state.pool.record(trials), state.numerics_check
    numerics = numerics_check.quick_check(claim, record)
    if numerics_check.needs_proof(claim, record) or not numerics.is_sound:
        numerics = numerics_check.full_check(claim, record, trials.num_steps, deadline_s)
    if numerics_check.needs_proof(claim, record) and numerics.is_sound is not False:
        numerics = numerics_check.prove(claim, recipe, trials.num_steps, deadline_s)
    return numerics


def with_numerics(verdict: Verdict, numerics: Numerics) -> Verdict:
    """Returns the verdict on a faster recipe after the check of its numerics."""
    if numerics.is_sound:
        return msgspec.structs.replace(verdict, numerics=numerics)
    if numerics.is_sound is None:
        return msgspec.structs.replace(verdict, numerics=numerics, decision="unsure", cause="unchecked")
    return msgspec.structs.replace(verdict, numerics=numerics, decision="rejected", cause="unsound")


def estimate(gain: float) -> Speed:
    """Returns a speed from the selection. The speed has no interval, so its bounds are 1 / FARTHEST and FARTHEST."""
    return Speed(math.exp(gain), 1.0 / FARTHEST, FARTHEST)


def measured(state: TuningState, verdict: Verdict, record: TrialRecord, speed: Speed | None) -> Verdict:
    """Adds the measured figures to a verdict. The step time and the rate are derived from the base's figures and the
    ratio, so that all rows of a table agree."""
    base_s = state.base_step_s()
    step_s = base_s / speed.ratio if speed is not None else None
    one_off = state.one_off_s(record, step_s) if step_s is not None else 0.0
    rate = samples_per_s(state)
    return msgspec.structs.replace(
        verdict,
        speed=speed,
        step_ms=step_s * 1e3 if step_s is not None else None,
        samples_per_s=rate * speed.ratio if rate and speed is not None else None,
        batch_size=batch_size(state),
        peak_bytes=record.device_peak_bytes or record.peak_bytes or None,
        one_off_s=one_off,
        payback_steps=payback_steps(one_off, base_s, step_s) if step_s is not None else None,
    )


def _measured(state: TuningState, entry: Entry, anchor: Recipe) -> Verdict:
    """Creates the verdict on an arm with its figures. `speed` is relative to the base. `own_ratio` is relative to the
    anchor, which is the trial that the others of a race are compared with."""
    choice, record = entry.arm.choice, state.pool.record(entry.trials)
    gain = None if entry.gain is None else entry.gain + state.estimates.get(anchor, 0.0)
    own_ratio = None if entry.gain is None else math.exp(entry.gain)
    verdict = Verdict(choice.technique, choice.setting, "rejected", recipe=entry.recipe, own_ratio=own_ratio)
    verdict = measured(state, verdict, record, None if gain is None else estimate(gain))
    if record.fingerprint.losses or record.fingerprint.snapshots:
        quick = state.numerics_check.quick_check(state.claim(entry.recipe), record)
        verdict = msgspec.structs.replace(verdict, numerics=quick)
    return verdict


def batch_size(state: TuningState) -> int | None:
    """Returns the number of samples in a step, as the check counted them."""
    summary = state.session.summary
    return round(summary.samples_per_step) or None if summary is not None else None


def samples_per_s(state: TuningState) -> float | None:
    """Returns the samples per second of the unchanged script, or None if they are unknown. Trials count the samples of
    their loader. Without a loader, the number of samples in a step comes from the check."""
    summary = state.session.summary
    timed = [timing for timing in state.base.timings if timing.num_samples and timing.num_steps]
    per_step = [timing.num_samples / timing.num_steps for timing in timed]
    num_samples = median(per_step) if per_step else summary.samples_per_step if summary is not None else 0.0
    return num_samples / state.base_step_s() if num_samples else None
