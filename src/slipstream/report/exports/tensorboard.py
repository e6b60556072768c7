"""A session as a TensorBoard event file: scalars, facts as text, and the trace for the profiler's tab.

The file is written without tensorboard, because the format is small. tensorboard is needed only to view it.
"""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from slipstream.records import Session
from slipstream.report.exports.scalars import curves, facts, values
from slipstream.report.exports.trace import to_trace

TRACE: Final = "slipstream.pt.trace.json.gz"  # the suffix by which the profiler's tab finds the file


def write_tensorboard(session: Session, folder: Path) -> Path:
    """Writes one file per call, as TensorBoard expects for runs that continue."""
    folder.mkdir(parents=True, exist_ok=True)
    seconds = _seconds(session.created)
    path = folder / f"events.out.tfevents.{int(seconds)}.slipstream.{os.getpid()}"
    number = 0
    while path.exists():
        number += 1
        path = path.with_name(f"{path.name.partition('-')[0]}-{number}")
    path.write_bytes(b"".join(_record(event) for event in _events(session, seconds)))
    (folder / TRACE).write_bytes(gzip.compress(to_trace(session), mtime=0))
    return path


def _seconds(created: str) -> float:
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return 0.0


def _events(session: Session, seconds: float) -> Iterator[bytes]:
    yield _double(1, seconds) + _bytes(3, b"brain.Event:2")
    for point in curves(session):
        yield _event(seconds, point.step, _scalar(point.name, point.value))
    for name, value in values(session).items():
        yield _event(seconds, 0, _scalar(name, value))
    table = "".join(f"| {name} | {_cell(value)} |\n" for name, value in facts(session).items())
    yield _event(seconds, 0, _text("session", f"| fact | |\n|---|---|\n{table}"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# The messages of TensorFlow's event.proto and summary.proto, as far as they are needed.


def _event(seconds: float, step: int, value: bytes) -> bytes:
    return _double(1, seconds) + _number(2, step) + _bytes(5, _bytes(1, value))


def _scalar(name: str, value: float) -> bytes:
    return _bytes(1, name.encode()) + _key(2, 5) + struct.pack("<f", value)


def _text(name: str, text: str) -> bytes:
    plugin = _bytes(1, _bytes(1, b"text"))  # SummaryMetadata.plugin_data.plugin_name
    tensor = _number(1, 7) + _bytes(2, _bytes(2, _number(1, 1))) + _bytes(8, text.encode())  # DT_STRING, of length 1
    return _bytes(1, f"{name}/text_summary".encode()) + _bytes(9, plugin) + _bytes(8, tensor)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _key(field, 0) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


# Records: length, data, and a checksum of each.


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # Castagnoli's polynomial, bit-reversed
        table.append(byte)
    return tuple(table)


_TABLE: Final = _make_table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _checksum(data: bytes) -> bytes:
    """A masked checksum, because a checksum of data that contains checksums would be weak."""
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)
