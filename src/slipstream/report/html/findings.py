"""Findings on the page: the gain of each, the evidence, the line with its context, the change."""

from __future__ import annotations

import msgspec

from slipstream.numbers import as_gain
from slipstream.records import Finding, Session
from slipstream.report.html.source import Reader, SourceLine, excerpt
from slipstream.report.text.locations import where


class FindingCard(msgspec.Struct, frozen=True):
    gain: str
    is_time: bool  # False for a finding that costs memory or correctness
    title: str
    cause: str
    techniques: list[str]
    evidence: str
    place: str
    lines: list[SourceLine]
    change: str
    advice: str  # of the change


def cards(session: Session, read: Reader) -> list[FindingCard]:
    return [_card(finding, session.cwd, read) for finding in session.findings]


def _card(finding: Finding, cwd: str, read: Reader) -> FindingCard:
    site = finding.site
    lines = (excerpt(site, read) or [SourceLine(site.line, site.text, True)]) if site else []
    gain = as_gain(finding.predicted_gain)
    return FindingCard(
        gain,
        gain != as_gain(1.0),
        finding.title,
        finding.cause,
        finding.techniques,
        finding.evidence,
        where(site, cwd),
        lines,
        finding.change,
        finding.advice,
    )
