"""A session as a TensorBoard event file: scalars, facts as text, and the trace for the profiler's tab.

The package `tensorboard` writes the file. For this it needs neither torch nor TensorFlow.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from slipstream.records import Session
from slipstream.report.exports.scalars import curves, facts, values
from slipstream.report.exports.trace import to_trace
from slipstream.report.exports.trackers import load

TRACE: Final = "slipstream.pt.trace.json.gz"  # the suffix by which the profiler's tab finds the file


def write_tensorboard(session: Session, folder: Path) -> None:
    """Writes the trace and a new event file. TensorBoard expects a new file for a run that continues. Raises
    MissingTrackerError if `tensorboard` is not installed."""
    file_writer = load("tensorboard.summary.writer.event_file_writer").EventFileWriter
    folder.mkdir(parents=True, exist_ok=True)
    writer = file_writer(str(folder))
    try:
        for event in _events(session):
            writer.add_event(event)
    finally:
        writer.close()
    (folder / TRACE).write_bytes(gzip.compress(to_trace(session), mtime=0))


def _events(session: Session) -> Iterator[Any]:
    """Yields messages of the class `Event`. All events have the time at which the session was created."""
    make_event = load("tensorboard.compat.proto.event_pb2").Event
    summary = load("tensorboard.compat.proto.summary_pb2").Summary
    time_s = _seconds(session.created)
    for point in curves(session):
        value = summary.Value(tag=point.name, simple_value=point.value)
        yield make_event(wall_time=time_s, step=point.step, summary=summary(value=[value]))
    for name, number in values(session).items():
        yield make_event(wall_time=time_s, summary=summary(value=[summary.Value(tag=name, simple_value=number)]))
    table = "".join(f"| {name} | {_cell(value)} |\n" for name, value in facts(session).items())
    text = summary.Value(tag="session/text_summary", **_text(f"| fact | |\n|---|---|\n{table}"))
    yield make_event(wall_time=time_s, summary=summary(value=[text]))


def _text(text: str) -> dict[str, Any]:
    """Returns a string tensor of length 1, and the metadata by which the tab for texts finds the tensor."""
    shape = load("tensorboard.compat.proto.tensor_shape_pb2").TensorShapeProto
    tensor = load("tensorboard.compat.proto.tensor_pb2").TensorProto(
        dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape(dim=[shape.Dim(size=1)])
    )
    metadata = load("tensorboard.plugins.text.metadata").create_summary_metadata(display_name="", description="")
    return {"tensor": tensor, "metadata": metadata}


def _seconds(created: str) -> float:
    try:
        return datetime.fromisoformat(created).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
