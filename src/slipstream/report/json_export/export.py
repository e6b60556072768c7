"""The session as a JSON document for other programs: what the terminal shows, and more."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from slipstream.diagnose.memory_growth import has_stopped
from slipstream.diagnose.steps.training_time import binding_length
from slipstream.memory.forecast import forecast
from slipstream.memory.remedies import list_remedies
from slipstream.records import (
    KINDS,
    Anatomy,
    Ceilings,
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
    OutlookPart,
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
from slipstream.report.text.notes import all_notes
from slipstream.report.text.numerics import describe_numerics
from slipstream.report.text.stages import StageTable, input_stages, main_stages
from slipstream.report.text.tune import gain, measured
from slipstream.report.text.verdicts import reason_of

PartT = TypeVar("PartT", bound=msgspec.Struct)


def export(session: Session) -> bytes:
    """Returns the document as indented JSON in UTF-8, with a line break at its end."""
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
        ending=session.ending,
        verdict=_headline(session),
        warning=warning(session),
        num_steps=summary.num_steps if summary else 0,
        num_undisturbed=summary.num_undisturbed if summary else None,
        num_disturbed=summary.num_disturbed if summary else 0,
        foreign_cores=summary.foreign_cores if summary else 0.0,
        is_inference=summary.is_inference if summary else False,
        step_ms=summary.step_ms if summary else None,
        step_low_ms=summary.step_low_ms if summary else None,
        step_high_ms=summary.step_high_ms if summary else None,
        samples_per_s=summary.samples_per_s if summary else None,
        phases=(summary.host_phases or summary.phases) if summary else {},
        device_phases=summary.device_phases if summary else None,
        ceilings=_part(ceilings, CeilingsPart),
        bound=summary.bound if summary else "unknown",
        findings=_findings(session),
        stages=_stages(input_stages(session), session.cwd) + _stages(main_stages(session, "other"), session.cwd),
        evaluation=_evaluation(session),
        training_time=_training_time(session),
        anatomy=_anatomy(session.anatomy, session.cwd) if session.anatomy else None,
        environment=session.environment,
        notes=all_notes(session),
        passed_through=session.passed_through,
        written=[relative(path, session.cwd) for path in session.written],
        verdicts=_verdicts(session.tuning, "single"),
        combinations=_verdicts(session.tuning, "cumulative", "left_out", "total", "writable"),
        total=_speed(session.tuning.total) if session.tuning else None,
        tuning=_tuning(session.tuning) if session.tuning else None,
        memory=_memory(session),
        fitting=_fitting(session.fitting) if session.fitting else None,
    )


def _headline(session: Session) -> str:
    if session.fitting is not None:
        return sentence(session.fitting)
    return summarise(session) if session.command == MEMORY else gain(session) or verdict(session)


def _findings(session: Session) -> list[FindingPart]:
    return [
        _part(
            finding,
            FindingPart,
            where=where(finding.site, session.cwd),
            source=finding.site.text if finding.site else "",
            measured=measured(session.tuning, finding),
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
    return _part(
        anatomy,
        AnatomyPart,
        modules=[_part(module, ModulePart) for module in anatomy.modules],
        attentions=[_part(one, AttentionPart, where=where(one.site, cwd)) for one in anatomy.attentions],
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
    summary, length = session.summary, binding_length(session)
    if summary is None or length is None:
        return None
    seconds = (summary.seconds_left, summary.seconds_best)
    return OutlookPart(length.num_epochs, length.num_steps, *seconds, training_time(session))


def _memory(session: Session) -> MemoryPart | None:
    if not session.footprints:
        return None
    footprint = session.footprints[0]
    return _part(
        footprint,
        MemoryPart,
        where=where(footprint.peak_site, session.cwd),
        modules=[_part(module, HolderPart, num_bytes=sum(module.kinds.values())) for module in footprint.modules],
        lines=[
            LinePart(where(line.site, session.cwd), line.site.text, sum(line.kinds.values()), line.kinds)
            for line in footprint.lines
        ],
        moments=[
            _part(moment, MomentPart, kinds=dict(zip(KINDS, moment.num_bytes, strict=True)))
            for moment in footprint.moments
        ],
        remedies=list_remedies(footprint),
        batches=_batches(session.footprints),
        capacity_bytes=footprint.capacity_bytes or None,
        largest_batch=largest_batch(session) or None,
        growth=_growth(footprint, session) if has_stopped(session.memory) is None else None,
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


def _fitting(fitting: Fitting) -> FittingPart:
    trials = [
        _part(attempt, TrialPart, recipe=_settings(attempt.recipe), **_ends(attempt.rate))
        for attempt in fitting.attempts
    ]
    return _part(fitting, FittingPart, recipe=_settings(fitting.recipe), trials=trials)


def _tuning(tuning: Tuning) -> TuningPart:
    return _part(
        tuning,
        TuningPart,
        recipe=_settings(tuning.recipe),
        noise=_speed(tuning.noise),
        candidate=_settings(tuning.candidate),
        candidate_speed=_speed(tuning.candidate_speed),
        writable=_settings(tuning.writable),
        writable_speed=_speed(tuning.writable_speed),
    )


def _verdicts(tuning: Tuning | None, *kinds: str) -> list[VerdictPart]:
    return [_verdict(verdict) for verdict in tuning.verdicts if verdict.kind in kinds] if tuning else []


def _verdict(verdict: Verdict) -> VerdictPart:
    numerics = verdict.numerics
    return _part(
        verdict,
        VerdictPart,
        reason=reason_of(verdict),
        numerics=numerics.claimed if numerics else None,
        recipe=_settings(verdict.recipe),
        is_sound=numerics.is_sound if numerics else None,
        proof=describe_numerics(numerics) if numerics else "",
        **_ends(verdict.speed),
    )


def _speed(speed: Speed | None) -> SpeedPart:
    return SpeedPart(**_ends(speed))


def _ends(speed: Speed | None) -> dict[str, float | None]:
    if speed is None:
        return dict.fromkeys(("ratio", "low", "high"))
    low, high = (speed.low, speed.high) if speed.is_bounded else (None, None)
    return {"ratio": speed.ratio, "low": low, "high": high}


def _settings(recipe: Recipe) -> dict[str, Setting]:
    return {choice.technique: choice.setting for choice in recipe.choices}


def _part(record: msgspec.Struct, kind: type[PartT], **facts: Any) -> PartT:
    """Returns a struct of `kind`. Fields come from the record's fields of the same names, or from `facts`."""
    return msgspec.convert(msgspec.structs.asdict(record) | facts, kind, from_attributes=True)
