"""The session as a JSON document for other programs: what the terminal shows, and more. Draws no conclusions of its
own.
"""

from __future__ import annotations

import msgspec

from slipstream.diagnose.memory_growth import has_stopped
from slipstream.memory.forecast import forecast
from slipstream.memory.remedies import list_remedies
from slipstream.records import (
    KINDS,
    Anatomy,
    Ceilings,
    FitAttempt,
    Fitting,
    Footprint,
    Recipe,
    Session,
    Setting,
    Speed,
    Tuning,
    Verdict,
)
from slipstream.report.json_export.schema import (
    JSON_SCHEMA,
    AnatomyPart,
    AttentionPart,
    BatchPart,
    CeilingsPart,
    EndingPart,
    EvaluationPart,
    Export,
    FindingPart,
    FittingPart,
    GrowthPart,
    HolderPart,
    LinePart,
    MemoryPart,
    ModulePart,
    MomentPart,
    OperatorPart,
    OutlookPart,
    RemedyPart,
    SpeedPart,
    StagePart,
    TrialPart,
    TuningPart,
    VerdictPart,
)
from slipstream.report.text.check import evaluation, training_time, verdict, warning
from slipstream.report.text.fit import sentence
from slipstream.report.text.locations import relative, where
from slipstream.report.text.memory import MEMORY, batch_sizes, largest_batch, summarise
from slipstream.report.text.stages import StageTable, input_stages, main_stages
from slipstream.report.text.tune import gain


def fitting_of(fitting: Fitting) -> FittingPart:
    return FittingPart(
        fitting.limit_bytes,
        fitting.limit_source,
        fitting.device,
        fitting.own_batch,
        fitting.own_fits,
        fitting.largest,
        fitting.too_large,
        fitting.fastest,
        _settings(fitting.recipe),
        fitting.parameter_bytes,
        [_trial(trial) for trial in fitting.attempts],
        fitting.seconds_spent,
        fitting.notes,
    )


def _trial(trial: FitAttempt) -> TrialPart:
    rate = trial.rate
    return TrialPart(
        trial.batch_size,
        _settings(trial.recipe),
        trial.is_held,
        trial.outcome,
        trial.reason,
        trial.peak_bytes,
        trial.step_ms,
        trial.samples_per_s,
        rate.ratio if rate else None,
        rate.low if rate else None,
        rate.high if rate else None,
    )


def export(session: Session) -> bytes:
    """UTF-8, indented, ending in a line break."""
    return msgspec.json.format(msgspec.json.encode(document(session)), indent=2) + b"\n"


def document(session: Session) -> Export:
    summary = session.summary
    ceilings = summary.ceilings if summary else Ceilings()
    return Export(
        schema=JSON_SCHEMA,
        slipstream=session.environment.slipstream,
        command=session.command,
        script=session.script,
        cwd=session.cwd,
        created=session.created,
        ending=msgspec.convert(session.ending, EndingPart, from_attributes=True),
        verdict=_headline(session),
        warning=warning(session),
        num_steps=summary.num_steps if summary else 0,
        is_inference=summary.is_inference if summary else False,
        step_ms=summary.step_ms if summary else None,
        step_low_ms=summary.step_low_ms if summary else None,
        step_high_ms=summary.step_high_ms if summary else None,
        samples_per_s=summary.samples_per_s if summary else None,
        phases=summary.phases if summary else {},
        device_phases=summary.device_phases if summary else None,
        ceilings=msgspec.convert(ceilings, CeilingsPart, from_attributes=True),
        bound=summary.bound if summary else "unknown",
        findings=_findings(session),
        stages=_stages(input_stages(session), session.cwd) + _stages(main_stages(session, "other"), session.cwd),
        evaluation=_evaluation(session),
        training_time=_training_time(session),
        anatomy=_anatomy(session.anatomy, session.cwd) if session.anatomy else None,
        environment=session.environment,
        notes=session.notes,
        passed_through=session.passed_through,
        written=[relative(path, session.cwd) for path in session.written],
        verdicts=verdicts_of(session.tuning) if session.tuning else [],
        combinations=combinations_of(session.tuning) if session.tuning else [],
        total=total_of(session.tuning) if session.tuning else None,
        tuning=tuning_of(session.tuning) if session.tuning else None,
        memory=memory_of(session),
        fitting=fitting_of(session.fitting) if session.fitting else None,
    )


def _headline(session: Session) -> str:
    if session.fitting is not None:
        return sentence(session.fitting)
    return summarise(session) if session.command == MEMORY else gain(session) or verdict(session)


def _findings(session: Session) -> list[FindingPart]:
    return [
        FindingPart(
            finding.cause,
            finding.title,
            where(finding.site, session.cwd),
            finding.site.text if finding.site else "",
            finding.predicted_gain,
            finding.evidence,
            finding.change,
            finding.advice,
            finding.techniques,
        )
        for finding in session.findings
    ]


def _stages(found: StageTable | None, cwd: str) -> list[StagePart]:
    return [
        StagePart(
            found.phase,
            share.stage,
            share.ms,
            share.share,
            found.num_workers > 0,
            f"{relative(share.line.file, cwd)}:{share.line.line}" if share.line else "",
            share.line.expression if share.line else "",
            share.line.ms if share.line else 0.0,
        )
        for share in (found.stages if found else [])
        if found
    ]


def _anatomy(anatomy: Anatomy, cwd: str) -> AnatomyPart:
    return AnatomyPart(
        anatomy.classes_ms,
        anatomy.flops,
        anatomy.num_operators,
        anatomy.padding_share,
        msgspec.convert(anatomy.operators, list[OperatorPart], from_attributes=True),
        msgspec.convert(anatomy.modules, list[ModulePart], from_attributes=True),
        [AttentionPart(one.path, where(one.site, cwd), one.share) for one in anatomy.attentions],
    )


def _evaluation(session: Session) -> EvaluationPart | None:
    if not session.evaluations:
        return None
    return EvaluationPart(
        sum(one.end_ns - one.start_ns for one in session.evaluations) / 1e9,
        sum(one.num_batches for one in session.evaluations),
        session.summary.evaluation_share if session.summary else None,
        any(one.grad for one in session.evaluations),
        evaluation(session),
    )


def _training_time(session: Session) -> OutlookPart | None:
    summary, length = session.summary, session.length
    if summary is None or length is None:
        return None
    seconds = (summary.seconds_left, summary.seconds_best)
    return OutlookPart(length.num_epochs, length.num_steps, *seconds, training_time(session))


def memory_of(session: Session) -> MemoryPart | None:
    if not session.footprints:
        return None
    footprint = session.footprints[0]
    return MemoryPart(
        device=footprint.device,
        batch_size=footprint.batch_size,
        peak_bytes=footprint.peak_bytes,
        peak_phase=footprint.peak_phase,
        peak_operator=footprint.peak_operator,
        where=where(footprint.peak_site, session.cwd),
        kinds=footprint.kinds,
        phases=footprint.phases,
        modules=[HolderPart(m.path, m.class_name, sum(m.kinds.values()), m.kinds) for m in footprint.modules],
        lines=[
            LinePart(where(line.site, session.cwd), line.site.text, sum(line.kinds.values()), line.kinds)
            for line in footprint.lines
        ],
        moments=[
            MomentPart(moment.at_ms, moment.phase, dict(zip(KINDS, moment.num_bytes, strict=True)))
            for moment in footprint.moments
        ],
        remedies=[RemedyPart(r.name, r.what, r.freed_bytes, r.numerics, r.price) for r in list_remedies(footprint)],
        batches=_batches(session.footprints),
        capacity_bytes=footprint.capacity_bytes or None,
        largest_batch=largest_batch(session) or None,
        growth=_growth(footprint, session) if has_stopped(session.memory) is None else None,
        reserved_bytes=footprint.reserved_bytes,
        split_bytes=footprint.split_bytes,
    )


def _batches(footprints: list[Footprint]) -> list[BatchPart]:
    made = forecast(footprints)
    if made is None:
        return []
    return [BatchPart(size, made.peak_bytes(size), made.observed.get(size)) for size in batch_sizes(made)]


def _growth(footprint: Footprint, session: Session) -> GrowthPart | None:
    if footprint.growth is None:
        return None
    return GrowthPart(footprint.growth.num_bytes, where(footprint.growth.site, session.cwd))


def verdicts_of(tuning: Tuning) -> list[VerdictPart]:
    """One for each technique and setting: the result of its race against the base, or why it was not raced, with the
    last decision.
    """
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
