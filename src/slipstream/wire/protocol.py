"""The messages that a trial and the race backend exchange over the baton's socket, and the socket itself. This module
measures no time and takes no decisions."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slipstream.records import Edit, Ending, Precision, Snapshot, TechniqueNote

_HEADER = struct.Struct("<I")
_LONGEST_PATH = 100  # bytes; the system allows 107 on Linux and 103 elsewhere


# --- from the trial ------------------------------------------------------------------------------------------------


class Joined(msgspec.Struct, frozen=True, tag=True):
    """A process of the trial has made its first tick and waits for Welcome. A process that gets no answer runs on
    without the baton and is never paused."""

    process: int
    at_s: float = 0.0  # the time by time.monotonic(), which all processes share; the message may be read later


class Ticked(msgspec.Struct, frozen=True, tag=True):
    """One step of the warm-up has ended. The trial waits for Welcome before the next step."""

    seconds: float
    input_s: float  # part of `seconds` that was spent waiting for batches
    is_disturbed: bool  # whether something was compiled in the step


class Standing(msgspec.Struct, frozen=True, tag=True):
    """A block has ended and the script is paused at a tick. At the end of the warm-up `num_steps` is 0."""

    first_step: int
    num_steps: int = 0
    seconds: float = 0.0
    time_ns: int = 0
    num_samples: int = 0
    starts_s: float = 0.0
    epoch_start_s: float = 0.0
    is_disturbed: bool = False


class Report(msgspec.Struct, frozen=True, tag=True):
    """What the trial recorded since the last report. The lists `changes`, `declined`, `complaints` and `edits` are
    always complete."""

    losses: list[tuple[int, float]] = []
    snapshots: list[Snapshot] = []
    digests: list[tuple[int, str | None]] = []  # None: the weights were not read
    metrics: list[tuple[int, str, float]] = []
    own_precision: Precision = "fp32"
    device_peak_bytes: int = 0
    device_free_bytes: int = 0
    start_bytes: int = 0
    held_bytes: int = 0
    limit_fault: str = ""
    changes: list[TechniqueNote] = []
    declined: list[TechniqueNote] = []
    complaints: list[str] = []
    edits: list[Edit] = []


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The script has ended by itself."""

    ending: Ending
    report: Report = Report()


# --- from the backend ------------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The trial holds the baton and continues its warm-up. With `is_warm`, the warm-up ends with this step."""

    is_warm: bool = False


class Tell(msgspec.Struct, frozen=True, tag=True):
    """All other processes of the trial are stopped. The trial answers with a Report."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """The trial runs `lead_in` untimed steps and then a timed block of `num_steps`. After `limit_s` the lead-in or the
    block ends with the step that is running. The block has at least one step."""

    num_steps: int
    lead_in: int
    limit_s: float = math.inf


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The trial ends the script."""


WireMessage = Joined | Ticked | Standing | Report | Finished | Welcome | Tell | Go | Stop
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WireMessage)


class Wire:
    """One end of a connection. Messages arrive complete and in order."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: WireMessage) -> bool:
        """Sends the message. Returns False if the other end is closed."""
        body = _encoder.encode(message)
        try:
            self._connection.sendall(_HEADER.pack(len(body)) + body)
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float | None = None) -> WireMessage | None:
        """Returns the next message, or None if the other end is closed. Raises TimeoutError if no complete message
        arrives in time."""
        while (message := self._take()) is None:
            if timeout_s is not None and not select.select([self._connection], [], [], timeout_s)[0]:
                raise TimeoutError
            try:
                data = self._connection.recv(1 << 20)
            except OSError:
                return None
            if not data:
                return None
            self._data += data
        return message

    def close(self) -> None:
        self._connection.close()

    def _take(self) -> WireMessage | None:
        if len(self._data) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._data)
        end = _HEADER.size + length
        if len(self._data) < end:
            return None
        message: WireMessage = _decoder.decode(memoryview(self._data)[_HEADER.size : end])
        del self._data[:end]
        return message


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _address(path) as address:
        listener.bind(address)
    listener.listen(8)
    return listener


def connect(path: Path) -> Wire | None:
    """Connects to the backend. Returns None if nothing listens at `path`, because another process of the trial holds
    the baton, or because the backend has ended."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    return Wire(connection)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yields an address for a Unix socket. On Linux a path that is too long for a socket is replaced by a short path
    through an open directory."""
    if len(os.fsencode(path)) <= _LONGEST_PATH or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
