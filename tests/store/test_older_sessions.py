"""Sessions of schema 1, in which some results were saved as sentences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import SCHEMA, Failure, IdleGpu, Session, TechniqueNote
from slipstream.store.older_sessions import decode_session
from slipstream.testing.made_sessions import made_session
from slipstream.testing.made_verdicts import made_tuning


def _saved(**fields: Any) -> Session:
    """Returns a synthetic session as schema 1 saved it, decoded again."""
    raw = msgspec.to_builtins(made_session())
    for name in ("diagnosis_notes", "idle_gpu", "no_overlay"):
        del raw[name]
    return decode_session(msgspec.msgpack.encode(raw | {"schema": 1} | fields))


def test_todays_sessions_are_decoded_as_they_are() -> None:
    session = diagnose(msgspec.structs.replace(made_session(), tuning=made_tuning()))
    assert session.schema == SCHEMA and decode_session(msgspec.msgpack.encode(session)) == session


def test_notes_stay_and_a_diagnosis_adds_none() -> None:
    """The note of the diagnosis has other words than today, so it cannot be told from the notes of the trial."""
    session = _saved(notes=["told by the trial", "said by an older diagnosis"], environment=_loaded())
    assert session.notes == ["told by the trial", "said by an older diagnosis"] and session.diagnosis_notes is None
    again = diagnose(session)
    assert again.notes == session.notes and again.diagnosis_notes is None and again.summary is not None
    assert decode_session(msgspec.msgpack.encode(again)) == again, "it is saved in today's form"
    today = diagnose(msgspec.structs.replace(session, diagnosis_notes=[]))
    assert today.diagnosis_notes, "the same session has a note today"


def _loaded() -> Any:
    return msgspec.to_builtins(msgspec.structs.replace(made_session().environment, load=99.0))


@pytest.mark.parametrize(
    ("note", "gpu"),
    [
        ("this torch (2.13.0) was built for the CPU only. Install a build for your GPU.", "cpu_build"),
        ("torch cannot see it. Check the driver and CUDA_VISIBLE_DEVICES.", "invisible"),
        ('move the model and its batches there, .to("cuda").', "unused"),
    ],
)
def test_a_note_about_an_unused_gpu_is_a_field(note: str, gpu: Any) -> None:
    session = _saved(notes=[f"The device is the CPU although a GPU is present (NVIDIA A10G): {note}", "another"])
    assert session.idle_gpu == IdleGpu("NVIDIA A10G", gpu) and session.notes == ["another"]


@pytest.mark.parametrize("reason", ["--no-overlay", "mount (8) refused: not permitted"])
def test_a_note_about_a_missing_overlay_is_a_field(reason: str) -> None:
    session = _saved(notes=["another", f"No throw-away file system ({reason}): checkpoints were redirected."])
    assert session.no_overlay == reason and session.notes == ["another"]
    assert not _saved(notes=["another"]).no_overlay


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("", None),
        (
            "slower: 9 ms a step instead of 1 ms: 9x slower",
            Failure("9 ms a step instead of 1 ms: 9x slower", "too_slow"),
        ),
        ("the script ended after 4 steps, too few", Failure("the script ended after 4 steps, too few", "ended", 4)),
        ("the script ended before its first step", Failure("the script ended before its first step", "ended")),
        ("ended by SIGKILL: no memory", Failure("ended by SIGKILL: no memory", signal="SIGKILL")),
        ("ValueError: no", Failure("ValueError: no")),
    ],
)
def test_a_failure_has_a_kind(line: str, failure: Failure | None) -> None:
    block = {"rider": 1, "round": 0, "first_step": 0, "num_steps": 0, "seconds": 0.0, "time_ns": 0, "failure": line}
    trial = {"entrant": {"ident": 1, "role": "candidate"}, "laps": [block], "failure": line}
    tuning = _saved(tuning={"base_step_ms": 1.0, "base_samples_per_s": 1.0, "riders": [trial]}).tuning
    assert tuning is not None
    assert tuning.trials[0].failure == failure == tuning.trials[0].timings[0].failure


def test_what_techniques_told_has_fields() -> None:
    complaint = "the seam 'race' was switched off after KeyError: 'x'"
    trial = {
        "entrant": {"ident": 1, "role": "candidate"},
        "changes": ["workers: num_workers 0 -> 2"],
        "declined": ["compile: ImportError: no compiler", complaint],
    }
    attempt = {"batch_size": 32, "changes": ["batch_size: 32 -> 64", "not: pieces: batch norm"]}
    fitting = {"limit_bytes": 1, "limit_source": "", "device": "cpu", "own_batch": 32, "own_fits": True}
    session = _saved(
        tuning={"base_step_ms": 1.0, "base_samples_per_s": 1.0, "riders": [trial]},
        fitting=fitting | {"trials": [attempt]},
    )
    assert session.tuning is not None and session.fitting is not None
    [record], [tried] = session.tuning.trials, session.fitting.attempts
    assert record.changes == [TechniqueNote("workers", "num_workers 0 -> 2")] and record.complaints == [complaint]
    assert record.declined == [TechniqueNote("compile", "ImportError: no compiler")]
    assert tried.changes == [TechniqueNote("batch_size", "32 -> 64")]
    assert tried.declined == [TechniqueNote("pieces", "batch norm")]
