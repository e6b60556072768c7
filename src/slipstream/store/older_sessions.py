"""Reads saved sessions, including those of older versions. Schema 1 has some results as sentences. Only this module
turns these sentences into fields."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from slipstream.records import SCHEMA, Session
from slipstream.store.decoding import decode_msgpack, one_error

_IDLE_GPU: Final = "The device is the CPU although a GPU is present"
_NO_OVERLAY: Final = "No throw-away file system"
_IN_BRACKETS: Final = re.compile(r"[^(]*\((.*?)\)(?::|$)")
_TOO_SLOW: Final = "slower:"
_ENDED: Final = re.compile(r"the script ended(?: after (\d+) steps)?")
_SIGNAL: Final = re.compile(r"ended by (SIG\w+)")
_DECLINED: Final = "not: "


class _Version(msgspec.Struct, frozen=True):
    schema: int


def decode_session(data: bytes) -> Session:
    """Decodes a session file. Raises DamagedFileError for any other content."""
    if decode_msgpack(data, _Version).schema >= SCHEMA:
        return decode_msgpack(data, Session)
    with one_error():
        return msgspec.convert(_upgraded(msgspec.msgpack.decode(data)), Session)


def _upgraded(session: dict[str, Any]) -> dict[str, Any]:
    """Upgrades a session of schema 1. Its notes also contain the notes of its diagnosis, and the two cannot be told
    apart."""
    notes = session.get("notes", [])
    idle = next((note for note in notes if note.startswith(_IDLE_GPU)), None)
    uncovered = next((note for note in notes if note.startswith(_NO_OVERLAY)), None)
    session |= {
        "schema": SCHEMA,
        "notes": [note for note in notes if not note.startswith((_IDLE_GPU, _NO_OVERLAY))],
        "diagnosis_notes": None,
        "idle_gpu": {"name": _in_brackets(idle), "cause": _cause(idle)} if idle is not None else None,
        "no_overlay": _in_brackets(uncovered) if uncovered is not None else "",
    }
    for trial in (session.get("tuning") or {}).get("riders", []):
        _upgrade_trial(trial)
    for attempt in (session.get("fitting") or {}).get("trials", []):
        lines = attempt.get("changes", [])
        attempt["changes"] = [_technique_note(line) for line in lines if not line.startswith(_DECLINED)]
        declined = [line.removeprefix(_DECLINED) for line in lines if line.startswith(_DECLINED)]
        attempt["declined"] = [_technique_note(line) for line in declined]
    return session


def _upgrade_trial(trial: dict[str, Any]) -> None:
    trial["changes"] = [_technique_note(line) for line in trial.get("changes", [])]
    declined = [_technique_note(line) for line in trial.get("declined", [])]
    trial["declined"] = [note for note in declined if note["technique"]]
    trial["complaints"] = [note["text"] for note in declined if not note["technique"]]
    for timed in (trial, *trial.get("laps", [])):
        timed["failure"] = _failure(timed.get("failure", ""))


def _technique_note(line: str) -> dict[str, str]:
    """Splits a line into the technique and its text. A line without a technique is a complaint: schema 1 saves
    complaints among the declined techniques."""
    technique, _, text = line.partition(": ")
    return {"technique": technique, "text": text} if technique.isidentifier() else {"technique": "", "text": line}


def _failure(line: str) -> dict[str, Any] | None:
    if not line:
        return None
    if line.startswith(_TOO_SLOW):
        return {"kind": "too_slow", "detail": line.removeprefix(_TOO_SLOW).strip()}
    if ended := _ENDED.match(line):
        return {"kind": "ended", "detail": line, "num_steps": int(ended[1]) if ended[1] else None}
    ended_by = _SIGNAL.match(line)
    return {"detail": line, "signal": ended_by[1] if ended_by else ""}


def _in_brackets(note: str) -> str:
    found = _IN_BRACKETS.match(note)
    return found[1] if found else "unknown"


def _cause(note: str) -> str:
    if "built for the CPU only" in note:
        return "cpu_build"
    return "invisible" if "cannot see it" in note else "unused"
