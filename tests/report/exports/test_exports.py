"""Traces, event files and trackers: what other programs read of a session."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Memory, Session, TorchProfile
from slipstream.report.exports.scalars import MOST_POINTS, curves, facts, values
from slipstream.report.exports.tensorboard import TRACE, write_tensorboard
from slipstream.report.exports.torch_profile import profile_slices, read_profile
from slipstream.report.exports.trace import to_trace
from slipstream.report.exports.trackers import MissingTrackerError, log_to_mlflow, log_to_wandb
from slipstream.testing.made_sessions import made_session, made_stack

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def session() -> Session:
    seen = made_session(
        num_workers=2,
        work_ms=60.0,
        stacks=[made_stack("decode", 14, 30, role="worker"), made_stack("read", 13, 10, role="worker")],
        memory=[Memory(step, 10**9 + step, 5_000_000 + step, 0) for step in range(10)],
    )
    return diagnose(seen)


def slices(trace: bytes, process: int, thread: int) -> list[dict[str, Any]]:
    found = json.loads(trace)["traceEvents"]
    return [one for one in found if one["ph"] == "X" and (one["pid"], one["tid"]) == (process, thread)]


def test_steps_and_phases_lie_where_they_were(session: Session) -> None:
    trace = to_trace(session)
    steps, phases = slices(trace, 1, 2), slices(trace, 1, 3)
    assert len(steps) == len(session.steps) and steps[3]["name"] == "step 3"
    assert steps[0]["ts"] == 0.0 and steps[0]["dur"] == pytest.approx(session.steps[0].step_ms * 1000)
    assert sum(one["dur"] for one in phases) == pytest.approx(sum(one["dur"] for one in steps))
    first = [one for one in phases if one["ts"] < steps[0]["dur"]]
    assert first[0]["name"] == "input" and first[0]["dur"] == pytest.approx(500)
    assert [one["name"] for one in slices(trace, 1, 1)] == [block.kind for block in session.blocks]


def test_workers_stages_and_memory_have_tracks(session: Session) -> None:
    trace = to_trace(session)
    first, second = slices(trace, 2, 0), slices(trace, 2, 1)
    assert first and second and first[0]["dur"] == pytest.approx(60_000) and first[0]["args"]["samples"] == 32
    names = {one["name"] for one in slices(trace, 4, 1)}
    assert names == {"decode", "read"}
    titles = [one["args"]["name"] for one in json.loads(trace)["traceEvents"] if one["name"] == "thread_name"]
    assert {"phases", "loader 0 worker 0", "loader 0 worker 1", "blocks"} <= set(titles)
    counted = [one for one in json.loads(trace)["traceEvents"] if one["ph"] == "C"]
    assert counted[0]["args"] == {"process": 5_000_000}


def test_a_device_is_laid_beside_the_host(session: Session) -> None:
    timed = [
        replace(event, device_start_ms=5000.0 + at, device_end_ms=5000.5 + at)
        for at, event in enumerate(session.events)
    ]
    found = slices(to_trace(replace(session, events=timed)), 3, 1)
    assert found[0]["ts"] == 0.0 and found[0]["dur"] == pytest.approx(500) and found[1]["ts"] == pytest.approx(1000)


def test_a_trace_is_bounded_and_names_what_it_left_out() -> None:
    long = diagnose(made_session(num_steps=3000, num_workers=2, work_ms=60.0))
    trace = to_trace(long, most_events=2000)
    document = json.loads(trace)
    assert sum(one["ph"] != "M" for one in document["traceEvents"]) <= 2000
    kinds = {long.blocks[step.block].kind for step in long.steps}
    shown = {long.blocks[long.steps[int(one["name"].split()[1])].block].kind for one in slices(trace, 1, 2)}
    assert shown == kinds, "something of every block"
    assert document["otherData"]["left out"].endswith(f"of {len(long.steps)} steps")
    assert len(gzip.compress(to_trace(diagnose(made_session(num_steps=2000))))) < 2_000_000


def test_an_empty_session_makes_an_empty_trace(session: Session) -> None:
    empty = replace(session, steps=[], blocks=[], events=[], fetches=[], memory=[], stacks=[], summary=None)
    assert json.loads(to_trace(empty))["traceEvents"] == []
    assert list(curves(empty)) == [] and values(empty).get("summary/step_ms") is None


def test_scalars_are_the_sessions_own(session: Session) -> None:
    assert session.summary is not None
    assert values(session)["summary/step_ms"] == session.summary.step_ms
    points = [point for point in curves(session) if point.name == "step/ms"]
    assert points[0].value == pytest.approx(session.summary.step_ms)
    assert facts(session)["script"] == "train.py" and "commit" not in facts(session)
    many = diagnose(made_session(num_steps=2 * MOST_POINTS + 1))
    assert sum(point.name == "step/ms" for point in curves(many)) <= MOST_POINTS


@pytest.fixture
def others_finders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries leave finders of their own on sys.meta_path."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.mark.usefixtures("others_finders")
def test_tensorboard_reads_the_event_files(session: Session, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_tensorboard(session, tmp_path)
    write_tensorboard(session, tmp_path)
    paths = sorted(tmp_path.glob("events.out.tfevents.*"))
    assert len(paths) == 2
    read = accumulator.EventAccumulator(str(paths[0]), size_guidance={"scalars": 0})
    read.Reload()
    assert set(read.Tags()["scalars"]) == {point.name for point in curves(session)} | set(values(session))
    assert len(read.Scalars("step/ms")) == sum(point.name == "step/ms" for point in curves(session))
    assert session.summary is not None
    assert read.Scalars("summary/step_ms")[0].value == pytest.approx(session.summary.step_ms)
    assert b"train.py" in read.Tensors("session/text_summary")[0].tensor_proto.string_val[0]
    assert json.loads(gzip.decompress((tmp_path / TRACE).read_bytes()))["traceEvents"]


def test_what_is_missing_is_named_with_its_command(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingTrackerError, match="pip install tensorboard"):
        write_tensorboard(session, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    with pytest.raises(MissingTrackerError, match="pip install wandb"):
        log_to_wandb(session, tmp_path)
    with pytest.raises(MissingTrackerError, match="pip install mlflow"):
        log_to_mlflow(session)


@pytest.mark.usefixtures("others_finders")
def test_weights_and_biases_takes_it_offline(session: Session, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    folder = Path(log_to_wandb(session, tmp_path))
    assert folder.is_dir() and list(folder.glob("*.wandb"))


@pytest.mark.usefixtures("others_finders")
def test_mlflow_takes_it(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    run = log_to_mlflow(session)
    [curve] = tmp_path.glob(f"*/{run}/metrics/step/ms")
    assert len(curve.read_text().splitlines()) == sum(point.name == "step/ms" for point in curves(session))


def profiled(tmp_path: Path, events: list[dict[str, Any]]) -> TorchProfile:
    path = tmp_path / "profile.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events, "deviceProperties": []}).encode()))
    return TorchProfile(str(path), "mark", 1_500_000_000, 3)


def event(name: str, ts: float, dur: float, pid: int | str = 4711, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": 7, "ts": ts, "dur": dur, **more}


def test_torchs_profile_lies_below_on_the_same_clock(session: Session, tmp_path: Path) -> None:
    events = [
        event("mark", 1000.0, 1.0),
        event("aten::mm", 2000.0, 50.0, args={"Input Dims": [[1] * 1000]}),
        event("gemm", 2010.0, 40.0, pid=0, cat="kernel"),
        event("PyTorch Profiler", 0.0, 9.0, pid="Spans", cat="Trace", tid="PyTorch Profiler"),
        {"ph": "M", "name": "process_name", "pid": 4711, "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "id": 1, "pid": 4711, "tid": 7, "ts": 2000.0, "cat": "fwdbwd", "name": "fwdbwd"},
    ]
    trace = to_trace(replace(session, torch_profile=profiled(tmp_path, events)))
    [operator], [kernel] = slices(trace, 10, 7), slices(trace, 11, 7)
    origin_us = session.blocks[0].start_ns / 1000
    assert operator["name"] == "aten::mm" and operator["ts"] == pytest.approx(1_501_000 - origin_us)
    assert kernel["name"] == "gemm" and kernel["ts"] - operator["ts"] == pytest.approx(10) and kernel["dur"] == 40
    titles = [one["args"]["name"] for one in json.loads(trace)["traceEvents"] if one["name"] == "process_name"]
    assert titles[-2:] == ["torch profiler", "torch profiler, device 0"]
    assert len(trace) < len(to_trace(session)) + 2000, "shapes and flows are left out"
    assert slices(trace, 1, 2) == slices(to_trace(session), 1, 2)


def test_of_very_many_operators_the_longest_stay(tmp_path: Path) -> None:
    events = [event("mark", 0.0, 1.0), *(event(f"op{n}", float(n), float(n)) for n in range(1, 50))]
    profile = profiled(tmp_path, events)
    kept = profile_slices(profile, read_profile(profile), most=3)
    assert [one["name"] for one in kept] == ["op47", "op48", "op49"]


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"traceEvents": [{"ph": 1}]}', b'{"traceEvents": []}', b"\xff"])
def test_a_profile_that_is_gone_or_broken_is_left_out(session: Session, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_bytes(content)
    found = replace(session, torch_profile=TorchProfile(str(path), "mark", 0, 3))
    assert to_trace(found) == to_trace(session)
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b"{}" * 500)[:20])
    assert read_profile(TorchProfile(str(tmp_path / "torn.json.gz"), "mark", 0, 3)) is None
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("/dev/zero", str(tmp_path / "pipe.json"), "a\0b"):
        assert read_profile(TorchProfile(name, "mark", 0, 3)) is None
    for data in (b"[" * 200_000, b'{"traceEvents": [{"ph": "\xff"}]}', b'{"other": ' + b"[" * 200_000):
        assert profile_slices(TorchProfile("", "mark", 0, 3), data) == []
