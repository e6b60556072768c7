"""Builds the result of a tuning from its state: figures for the table, the report and the recipe file."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from slipstream.diagnose.steps.training_time import training_length
from slipstream.recipe.source_edits import edits_of
from slipstream.records import Choice, Edit, Recipe, Session, Speed, Summary, TrialRecord, Tuning, Verdict
from slipstream.tuning import verdicts
from slipstream.tuning.candidates import CONTROL
from slipstream.tuning.proof import Proof
from slipstream.tuning.state import TuningState


def conclude(state: TuningState, proofs: Sequence[Proof], is_complete: bool, was_interrupted: bool) -> Tuning:
    """Builds the result. A recipe is kept if a proof of it succeeded. Without a successful proof the result names the
    best recipe, if there is one, as a candidate, with its measured or estimated speed."""
    kept = next((proof for proof in proofs if proof.is_kept), None)
    recipe = kept.recipe if kept is not None else Recipe()
    candidate, candidate_speed = (Recipe(), None) if kept is not None else _candidate(state, proofs)
    base, load = state.pool.record(state.base), state.runner.load
    summary = state.session.summary
    is_timed = any(timing.num_steps for timing in state.base.timings)
    step_ms = state.base_step_s() * 1e3 if is_timed or summary is None else summary.step_ms
    rate = verdicts.samples_per_s(state) or 0.0
    speed = kept.speed if kept is not None else None
    one_off = next((one.one_off_s for one in state.verdicts if one.kind == "total" and one.recipe == recipe), 0.0)
    before, after = _seconds(state.session, speed, base.startup_s, one_off)
    noise = verdicts.estimate(fmean(state.control_gains)) if state.control_gains else None
    rows = [_in_proportion(_settled(verdict, recipe, candidate), step_ms, rate) for verdict in state.verdicts]
    return Tuning(
        base_step_ms=step_ms,
        base_samples_per_s=rate,
        verdicts=[*rows, *_of_noise(noise)],
        total=speed,
        recipe=recipe,
        noise=noise,
        base_batch_size=verdicts.batch_size(state),
        base_peak_bytes=base.device_peak_bytes or base.peak_bytes or None,
        ceiling_ms=_ceiling_ms(summary, step_ms),
        seconds_before=before,
        seconds_after=after,
        seconds_spent=state.budget.spent_s(),
        is_complete=is_complete,
        was_interrupted=was_interrupted,
        trials=[_without_sketches(record) for record in state.pool.past],
        edits=_edits(state, recipe),
        candidate=candidate,
        candidate_speed=candidate_speed,
        candidate_edits=_edits(state, candidate),
        writable=state.writable,
        writable_speed=_writable_speed(state, proofs),
        writable_edits=_edits(state, state.writable),
        num_rounds=load.num_rounds,
        num_discarded=len(load.foreign_cores),
        foreign_cores=state.runner.mean_foreign_cores(),
        waited_s=load.waited_s,
        notes=list(state.notes),
    )


def _candidate(state: TuningState, proofs: Sequence[Proof]) -> tuple[Recipe, Speed | None]:
    """Returns the recipe of the last open proof that has a speed. Without such a proof it returns the selected recipe,
    unless a proof rejected it. Returns an empty recipe if none is left, or if the recipe is not faster than the base.
    The speed has an interval if pairs of a proof gave one."""
    open_proofs = [proof for proof in proofs if proof.is_open and proof.speed is not None]
    if open_proofs:
        recipe, speed = open_proofs[-1].recipe, open_proofs[-1].speed
    elif not state.recipe.choices or any(proof.recipe == state.recipe and not proof.is_open for proof in proofs):
        return Recipe(), None
    else:
        recipe, speed = state.recipe, verdicts.estimate(state.estimates.get(state.recipe, 0.0))
    return (recipe, speed) if speed is None or speed.ratio > 1.0 else (Recipe(), None)


def _writable_speed(state: TuningState, proofs: Sequence[Proof]) -> Speed | None:
    """Returns the speed of the best recipe that can be written into the source. The speed comes from the proof of this
    recipe or, without a proof, from the selection."""
    if not state.writable.choices:
        return None
    proved = [proof.speed for proof in proofs if proof.recipe == state.writable and proof.speed is not None]
    return proved[0] if proved else verdicts.estimate(state.estimates.get(state.writable, 0.0))


def _settled(verdict: Verdict, recipe: Recipe, candidate: Recipe) -> Verdict:
    """Returns the verdict on a technique after all proofs. A technique that the selection chose is kept only if the
    kept recipe contains it."""
    if verdict.kind != "single" or verdict.decision != "kept" or verdict.choice in recipe.choices:
        return verdict
    if (recipe.setting_of(verdict.technique) or candidate.setting_of(verdict.technique)) not in (None, verdict.setting):
        return verdicts.outpaced(verdict)
    return msgspec.structs.replace(verdict, decision="unsure", cause="not_proved")


def _in_proportion(verdict: Verdict, step_ms: float, rate: float) -> Verdict:
    """Derives the step time and the rate from the base's figures and the ratio, so that all rows of a table agree."""
    if verdict.speed is None or verdict.step_ms is None:
        return verdict
    ratio = verdict.speed.ratio
    return msgspec.structs.replace(verdict, step_ms=step_ms / ratio, samples_per_s=rate * ratio if rate else None)


def _ceiling_ms(summary: Summary | None, step_ms: float) -> float | None:
    """Returns the step time that the ceilings of the check allow. The result is scaled from the step time of the check
    to the step time of the base, because the machine's speed may have changed since the check."""
    best_ms = summary.ceilings.best_ms() if summary is not None else None
    if summary is None or not best_ms or not summary.step_ms:
        return best_ms
    return best_ms / summary.step_ms * step_ms


def _of_noise(speed: Speed | None) -> list[Verdict]:
    if speed is None:
        return []
    return [Verdict(CONTROL, True, "rejected", speed=speed, recipe=Recipe((Choice(CONTROL),)), kind="noise")]


def _seconds(
    session: Session, total: Speed | None, startup_s: float, one_off_s: float
) -> tuple[float | None, float | None]:
    """Returns the seconds of the whole training without and with the recipe. Both include the start-up, and the second
    includes one-off costs. The recipe makes only steps faster. `summary.seconds_left` counts mean steps, whereas
    `summary.step_ms` is a median. With few steps the median can exceed the mean, so the time of all steps is limited to
    `seconds_left`."""
    num_steps, _ = training_length(session)
    summary = session.summary
    if summary is None or summary.seconds_left is None or num_steps is None:
        return None, None
    before_s = summary.seconds_left + startup_s
    if total is None:
        return before_s, None
    steps_s = min(num_steps * summary.step_ms / 1e3, summary.seconds_left)
    saved_s = steps_s * (1.0 - 1.0 / total.ratio)
    return before_s, max(0.0, before_s - saved_s) + one_off_s


def _without_sketches(record: TrialRecord) -> TrialRecord:
    fingerprint = msgspec.structs.replace(record.fingerprint, snapshots=[])
    return msgspec.structs.replace(record, fingerprint=fingerprint)


def _edits(state: TuningState, recipe: Recipe) -> list[Edit]:
    """Returns the source edits that trials of the recipe recorded, or else the edits that the techniques propose."""
    seen = [edit for record in state.pool.past if record.spec.recipe == recipe for edit in record.edits]
    return edits_of(state.session, recipe, list(dict.fromkeys(seen)), state.techniques) if recipe.choices else []
