"""The session as a document for other programs: what the terminal shows, and more. Concludes nothing."""

from __future__ import annotations

import msgspec

from slipstream.records import Anatomy, Ceilings, Session
from slipstream.report.document import (
    JSON_SCHEMA,
    AnatomyPart,
    AttentionPart,
    CeilingsPart,
    EndingPart,
    EvaluationPart,
    Export,
    FindingPart,
    ModulePart,
    OperatorPart,
    OutlookPart,
    StagePart,
)
from slipstream.report.fit_json import fitting_of
from slipstream.report.fit_words import sentence
from slipstream.report.memory_json import memory_of
from slipstream.report.memory_words import MEMORY, summarise
from slipstream.report.place import relative, where
from slipstream.report.stages import StageTable, input_stages, main_stages
from slipstream.report.tune_json import combinations_of, total_of, tuning_of, verdicts_of
from slipstream.report.tune_words import gain
from slipstream.report.verdict import evaluation, outlook, verdict, warning


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
        verdict=_verdict(session),
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
        outlook=_outlook(session),
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


def _verdict(session: Session) -> str:
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


def _outlook(session: Session) -> OutlookPart | None:
    summary, length = session.summary, session.length
    if summary is None or length is None:
        return None
    seconds = (summary.seconds_left, summary.seconds_best)
    return OutlookPart(length.num_epochs, length.num_steps, *seconds, outlook(session))
