"""Computes a summary and findings from records. All functions are pure: they use no torch, no clock and no files."""

from __future__ import annotations

import msgspec

from slipstream.diagnose.notes import machine_notes
from slipstream.diagnose.ranking import find_all
from slipstream.diagnose.summary import summarise
from slipstream.records import Session

__all__ = ["diagnose"]


def diagnose(session: Session) -> Session:
    """Return the session with its summary and findings filled in.

    `notes` holds sentences about what could not be determined. Diagnosing a diagnosed session gives the same session.
    """
    summary, notes = summarise(session)
    if summary is None:
        return msgspec.structs.replace(session, summary=None, findings=[], notes=_joined(session.notes, notes))
    findings, more = find_all(session, summary)
    notes = [*notes, *machine_notes(session, summary), *more]
    return msgspec.structs.replace(session, summary=summary, findings=findings, notes=_joined(session.notes, notes))


def _joined(told: list[str], found: list[str]) -> list[str]:
    return list(dict.fromkeys([*told, *found]))
