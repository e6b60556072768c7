"""Findings on the page: the gain, the evidence, the line with its context, and the change.

The context is read from the user's file, if the file still has the line that was measured.
"""

from __future__ import annotations

import tokenize
from collections.abc import Callable
from pathlib import Path

import msgspec

from slipstream.numbers import as_gain
from slipstream.records import Finding, Session, Site
from slipstream.report.text.locations import where
from slipstream.report.text.tune import measured

AROUND = 3
MOST_BYTES = 2_000_000

Reader = Callable[[str], str | None]  # maps a file name to its text, or None


class SourceLine(msgspec.Struct, frozen=True):
    number: int
    text: str
    is_meant: bool


class FindingCard(msgspec.Struct, frozen=True):
    gain: str
    is_time: bool  # False for a finding about memory or correctness
    title: str
    cause: str
    techniques: list[str]
    evidence: str
    place: str
    lines: list[SourceLine]
    change: str
    advice: str  # a sentence about the change
    measured: str  # what the races of a tuning measured for the finding


def cards(session: Session, read: Reader) -> list[FindingCard]:
    return [_card(finding, session, read) for finding in session.findings]


def _card(finding: Finding, session: Session, read: Reader) -> FindingCard:
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
        where(site, session.cwd),
        lines,
        finding.change,
        finding.advice,
        measured(session.tuning, finding),
    )


def read_source(file: str) -> str | None:
    """Returns the text of a Python file, or None. Other files are not read, because a session may come from anyone and
    must not show files of the reader."""
    path = Path(file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        with tokenize.open(file) as opened:
            return opened.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return None


def excerpt(site: Site, read: Reader) -> list[SourceLine]:
    """Returns the line of the site with its neighbours, or [] if the file is missing or the line has changed."""
    source = read(site.file)
    lines = source.splitlines() if source is not None else []
    if not 1 <= site.line <= len(lines) or not site.text or _squeezed(site.text) not in _squeezed(lines[site.line - 1]):
        return []
    first, last = max(1, site.line - AROUND), min(len(lines), site.line + AROUND)
    return [SourceLine(number, lines[number - 1].rstrip(), number == site.line) for number in range(first, last + 1)]


def _squeezed(text: str) -> str:
    """Returns the text with each run of white space as one blank. A site stores its line without indentation."""
    return " ".join(text.split())
