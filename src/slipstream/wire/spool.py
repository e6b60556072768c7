"""Messages from the script's processes to the parent process. Each process appends to its own file, in a directory that
the parent created. Messages that were written before a process was killed can still be read."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slipstream.records import Message
from slipstream.store.decoding import DamagedFileError, one_error
from slipstream.store.safe_files import is_regular_file

_HEADER = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class Spool:
    """The file of one process. The file is opened when the first message is written. After a message that could not be
    stored, for example on a full disk, all later messages are dropped, because the script must not notice the error."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None
        self._process = 0
        self._is_broken = False

    def write(self, message: Message) -> None:
        if not self._is_broken:
            try:
                self._write(message)
            except OSError:
                self._is_broken = True

    def _write(self, message: Message) -> None:
        body = _encoder.encode(message)
        if self._descriptor is None or self._process != os.getpid():  # a forked process needs its own file
            self._process = os.getpid()
            name = self._directory / f"{self._process}.spool"
            self._descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        data = _HEADER.pack(len(body)) + body
        self._is_broken = os.write(self._descriptor, data) != len(data)

    def close(self) -> None:
        if self._descriptor is not None and self._process == os.getpid():
            os.close(self._descriptor)
        self._descriptor = None


class MemorySink:
    """Keeps the messages in memory, with the interface of Spool, for a program that observes itself."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def write(self, message: Message) -> None:
        self.messages.append(message)

    def close(self) -> None:
        pass


class SpoolReader:
    """Reads the messages of all processes from a spool directory, each message once. The processes may still write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}

    def read(self) -> Iterator[tuple[int, Message]]:
        """Yields the messages that were written since the last call, each with the id of its process. An incomplete
        message is left for the next call. Damaged messages are left out, because the script can write to the
        directory."""
        for path in sorted(self._directory.glob("*.spool")):
            if not path.stem.isdecimal() or not is_regular_file(path):
                continue
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            position = 0
            while position + _HEADER.size <= len(data):
                (length,) = _HEADER.unpack_from(data, position)
                end = position + _HEADER.size + length
                if end > len(data):
                    break
                message = None
                with contextlib.suppress(DamagedFileError), one_error():
                    message = _decoder.decode(data[position + _HEADER.size : end])
                if message is not None:
                    yield int(path.stem), message
                position = end
            self._offsets[path] = offset + position
