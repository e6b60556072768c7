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

    `diagnosis_notes` holds sentences about what could not be determined. Diagnosing a diagnosed session gives the same
    session. In a session of an older version `diagnosis_notes` is None, because `notes` contains these sentences
    already. In this case `diagnosis_notes` stays None.
    """
    summary, notes = summarise(session)
    if summary is None:
        return msgspec.structs.replace(session, summary=None, findings=[], diagnosis_notes=_made(session, notes))
    findings, more = find_all(session, summary)
    made = _made(session, [*notes, *machine_notes(session, summary), *more])
    return msgspec.structs.replace(session, summary=summary, findings=findings, diagnosis_notes=made)


def _made(session: Session, notes: list[str]) -> list[str] | None:
    return None if session.diagnosis_notes is None else list(dict.fromkeys(notes))
