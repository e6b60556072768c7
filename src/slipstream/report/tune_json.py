"""The parts of the exported document that a tuning adds."""

from __future__ import annotations

from slipstream.records import Recipe, Setting, Speed, Tuning, Verdict
from slipstream.report.document import SpeedPart, TuningPart, VerdictPart


def verdicts_of(tuning: Tuning) -> list[VerdictPart]:
    """One for each technique and setting: raced alone against the base, or why it was not; the decision is the last."""
    return [_verdict(verdict) for verdict in tuning.verdicts if verdict.kind == "single"]


def combinations_of(tuning: Tuning) -> list[VerdictPart]:
    return [_verdict(verdict) for verdict in tuning.verdicts if verdict.kind not in ("single", "noise")]


def total_of(tuning: Tuning) -> SpeedPart:
    return _speed(tuning.total)


def tuning_of(tuning: Tuning) -> TuningPart:
    return TuningPart(
        _settings(tuning.recipe),
        _speed(tuning.noise),
        tuning.noise_note,
        tuning.base_step_ms,
        tuning.base_samples_per_s,
        tuning.base_peak_bytes,
        tuning.ceiling_ms,
        tuning.seconds_before,
        tuning.seconds_after,
        tuning.seconds_spent,
        tuning.is_complete,
        tuning.notes,
    )


def _verdict(verdict: Verdict) -> VerdictPart:
    speed, numerics = _speed(verdict.speed), verdict.numerics
    return VerdictPart(
        verdict.technique,
        verdict.setting,
        verdict.decision,
        speed.ratio,
        speed.low,
        speed.high,
        numerics.claimed if numerics else None,
        verdict.reason,
        verdict.kind,
        _settings(verdict.recipe),
        numerics.is_sound if numerics else None,
        numerics.reason if numerics else "",
        verdict.step_ms,
        verdict.samples_per_s,
        verdict.batch_size,
        verdict.peak_bytes,
        verdict.one_off_s,
        verdict.payback_steps,
    )


def _speed(speed: Speed | None) -> SpeedPart:
    return SpeedPart(speed.ratio, speed.low, speed.high) if speed else SpeedPart(None, None, None)


def _settings(recipe: Recipe) -> dict[str, Setting]:
    return {choice.technique: choice.setting for choice in recipe.choices}
