"""The exported document: the promised names, decodable as its own schema, for every kind of session."""

from __future__ import annotations

import json

import msgspec
import pytest

from slipstream.records import Choice, Recipe, Session, Speed, Tuning, Verdict
from slipstream.report.json_export.export import export
from slipstream.report.json_export.schema import JSON_SCHEMA, Export
from slipstream.tuning.verdicts import estimate

PROMISED = {
    *("schema", "script", "environment", "step_ms", "samples_per_s", "phases", "device_phases", "ceilings", "bound"),
    *("findings", "ending", "evaluation", "outlook", "anatomy", "stages", "notes", "written"),
}


@pytest.mark.parametrize("name", ["slow", "device", "healthy", "empty", "hostile"])
def test_every_session_gives_a_document_of_the_schema(sessions: dict[str, Session], name: str) -> None:
    data = export(sessions[name])
    assert set(json.loads(data)) >= PROMISED
    assert msgspec.json.decode(data, type=Export).schema == JSON_SCHEMA


def test_the_slow_session(sessions: dict[str, Session]) -> None:
    document = json.loads(export(sessions["slow"]))
    assert document["script"] == ["train.py", "--epochs", "90"]
    assert document["step_ms"] == 63.0
    assert sum(document["phases"].values()) == pytest.approx(63.0)
    assert {"compute_ms", "input_ms", "shared_ms"} <= set(document["ceilings"])
    first = document["findings"][0]
    assert (first["cause"], first["where"], first["predicted_gain"]) == ("no_workers", "train.py:31", 2.8)
    assert {"evidence", "change", "techniques", "title"} <= set(first)
    decode = document["stages"][0]
    assert (decode["stage"], decode["where"]) == ("decode", "data.py:31")
    assert decode["ms"] == pytest.approx(27.0)
    assert document["written"] == ["checkpoint.pt"]


def test_a_session_without_steps(sessions: dict[str, Session]) -> None:
    document = json.loads(export(sessions["empty"]))
    assert document["step_ms"] is None
    assert document["phases"] == {}
    assert document["findings"] == []
    assert document["bound"] == "unknown"


def test_an_estimate_has_a_reason_in_words_and_no_interval(sessions: dict[str, Session]) -> None:
    outpaced = Verdict("workers", 2, "rejected", cause="outpaced", speed=estimate(0.1), own_ratio=1.1)
    tuning = Tuning(
        50.0, 640.0, [outpaced], candidate=Recipe((Choice("compile"),)), candidate_speed=Speed(1.5, 1.2, 1.8)
    )
    document = json.loads(export(msgspec.structs.replace(sessions["slow"], tuning=tuning)))
    verdict = document["verdicts"][0]
    assert verdict["reason"] == "about 1.10x: others gained more in the same pass"
    assert verdict["ratio"] > 1.0 and verdict["low"] is None and verdict["high"] is None
    assert document["tuning"]["candidate"] == {"compile": True}
    assert document["tuning"]["candidate_speed"] == {"ratio": 1.5, "low": 1.2, "high": 1.8}
