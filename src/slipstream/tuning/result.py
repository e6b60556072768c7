"""Builds the result of a tuning from its state: numbers for the table, the report and the recipe file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.diagnose.training_time import training_length
from slipstream.recipe.source_edits import edits_of
from slipstream.records import Choice, Edit, Recipe, Session, Speed, Summary, TrialRecord, Tuning, Verdict
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.state import TuningState
from slipstream.tuning.verdicts import batch_size, paired, samples_per_s


def conclude(state: TuningState, total: Comparison | None, is_complete: bool, was_interrupted: bool) -> Tuning:
    summary, base = state.session.summary, state.pool.record(state.base)
    is_timed = any(timing.num_steps for timing in state.base.timings)
    step_ms = state.base_step_s() * 1e3 if is_timed or summary is None else summary.step_ms
    speed = _total_speed(state) if total is not None and state.recipe.choices else None
    before, after = _seconds(state.session, speed, base.startup_s, _one_off_s(state.verdicts))
    noise = state.noise.speed()
    rate = samples_per_s(state, base, step_ms / 1e3) or 0.0
    rows = [paired(verdict, step_ms, rate) for verdict in state.verdicts]
    return Tuning(
        base_step_ms=step_ms,
        base_samples_per_s=rate,
        verdicts=[*rows, *_of_noise(noise, state.noise.note())],
        total=speed,
        recipe=state.recipe,
        noise=noise,
        noise_note=state.noise.note(),
        base_batch_size=batch_size(state),
        base_peak_bytes=base.device_peak_bytes or base.peak_bytes or None,
        ceiling_ms=_ceiling_ms(summary, step_ms),
        seconds_before=before,
        seconds_after=after,
        seconds_spent=state.budget.spent_s(),
        is_complete=is_complete,
        was_interrupted=was_interrupted,
        trials=[_without_sketches(record) for record in state.pool.past],
        edits=_edits(state, total),
        notes=list(state.notes),
    )


def _total_speed(state: TuningState) -> Speed | None:
    """The speed in the final race or, if that could not be timed, in the race by which the recipe was kept."""
    return next((verdict.speed for verdict in state.verdicts if verdict.kind == "total"), None)


def _ceiling_ms(summary: Summary | None, step_ms: float) -> float | None:
    """The ceiling, scaled from the check's step time to the base's: the machine's speed may have changed since the
    check."""
    best_ms = summary.ceilings.best_ms() if summary is not None else None
    if summary is None or not best_ms or not summary.step_ms:
        return best_ms
    return best_ms / summary.step_ms * step_ms


def _of_noise(speed: Speed | None, note: str) -> list[Verdict]:
    if speed is None:
        return []
    reason = note or "the A/A control: within the noise"
    recipe = Recipe((Choice("nothing"),))
    return [
        Verdict("nothing", True, "unsure" if note else "rejected", reason, speed=speed, recipe=recipe, kind="noise")
    ]


def _one_off_s(verdicts: Sequence[Verdict]) -> float:
    return next((verdict.one_off_s for verdict in verdicts if verdict.kind == "total"), 0.0)


def _seconds(
    session: Session, total: Speed | None, startup_s: float, one_off_s: float
) -> tuple[float | None, float | None]:
    """The seconds of the whole training now and with the recipe, start-up and one-off costs included. Only steps become
    faster. `summary.seconds_left` counts mean steps and `summary.step_ms` is a median, which can be larger where there
    are few steps: then no more is saved than the ratio allows."""
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


def _edits(state: TuningState, total: Comparison | None) -> list[Edit]:
    """The source edits that the trial of the whole recipe recorded, or else those that the techniques propose."""
    seen = state.pool.record(total.trials).edits if total is not None else []
    return edits_of(state.session, state.recipe, seen, state.techniques)
