"""What a rider and the relay say to each other over the baton's socket, and the socket itself. Knows neither what is
timed nor who decides."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slipstream.records import Edit, Ending, Snapshot

_HEADER = struct.Struct("<I")
_LONGEST_PATH = 100  # bytes that an address may have: 107 on Linux, 103 elsewhere


# --- the rider says ------------------------------------------------------------------------------------------------


class Joined(msgspec.Struct, frozen=True, tag=True):
    """A process of the rider has made its first tick. It waits for Welcome; hearing nothing, it rides on unheld."""

    process: int
    at_s: float = 0.0  # by the clock that all processes share: it may wait to be heard


class Ticked(msgspec.Struct, frozen=True, tag=True):
    """One step of the warm-up. The rider waits for Welcome before the next one."""

    seconds: float
    input_s: float  # of these, waiting for batches
    is_disturbed: bool  # something was compiled


class Standing(msgspec.Struct, frozen=True, tag=True):
    """A block has ended (of no steps, after the warm-up): the script stands still at a tick."""

    first_step: int
    num_steps: int = 0
    seconds: float = 0.0
    time_ns: int = 0
    num_samples: int = 0
    starts_s: float = 0.0
    epoch_start_s: float = 0.0
    is_disturbed: bool = False


class Report(msgspec.Struct, frozen=True, tag=True):
    """What came to be known since the last report; lists of a recipe's doings are whole each time."""

    losses: list[tuple[int, float]] = []
    snapshots: list[Snapshot] = []
    digests: list[tuple[int, str]] = []
    device_peak_bytes: int = 0
    device_free_bytes: int = 0
    start_bytes: int = 0
    held_bytes: int = 0
    changes: list[str] = []
    declined: list[str] = []
    edits: list[Edit] = []


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The script ended by itself."""

    ending: Ending
    report: Report = Report()


# --- the relay says --------------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """You hold the baton: go on with the warm-up."""


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Everyone around you stands still: report."""


class Go(msgspec.Struct, frozen=True, tag=True):
    num_steps: int
    lead_in: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the script."""


Word = Joined | Ticked | Standing | Report | Finished | Welcome | Tell | Go | Stop
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Word)


class Wire:
    """One end of a connection. Words come whole and in order; None is its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, word: Word) -> bool:
        """False: there is nobody any more."""
        body = _encoder.encode(word)
        try:
            self._connection.sendall(_HEADER.pack(len(body)) + body)
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float | None = None) -> Word | None:
        """Raises TimeoutError if no whole word came in time."""
        while (word := self._take()) is None:
            if timeout_s is not None and not select.select([self._connection], [], [], timeout_s)[0]:
                raise TimeoutError
            try:
                data = self._connection.recv(1 << 20)
            except OSError:
                return None
            if not data:
                return None
            self._data += data
        return word

    def close(self) -> None:
        self._connection.close()

    def _take(self) -> Word | None:
        if len(self._data) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._data)
        end = _HEADER.size + length
        if len(self._data) < end:
            return None
        word: Word = _decoder.decode(memoryview(self._data)[_HEADER.size : end])
        del self._data[:end]
        return word


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _address(path) as address:
        listener.bind(address)
    listener.listen(8)
    return listener


def connect(path: Path) -> Wire | None:
    """None: nobody listens; somebody else holds the baton, or the relay is gone."""
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
    """An address short enough for the system: long paths go by way of an open directory."""
    if len(os.fsencode(path)) <= _LONGEST_PATH or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
