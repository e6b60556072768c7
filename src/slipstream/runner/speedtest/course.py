"""The whole speed test, stage by stage. A stage that cannot be measured is a sentence among the notes, and the others
go on."""

from __future__ import annotations

import datetime
import importlib.util
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from slipstream.records import Reading, SpeedTest
from slipstream.runner.machine import read_environment
from slipstream.runner.speedtest import children, torch_child
from slipstream.runner.speedtest.decode import DecodeError, read_decoding
from slipstream.runner.speedtest.disk import DiskError, read_disk
from slipstream.runner.speedtest.memory import read_memory
from slipstream.runner.speedtest.starts import read_starts

_PATIENCE_S: Final = 240.0  # for the child with torch


class Pace(msgspec.Struct, frozen=True):
    """How long everything takes."""

    seconds: float = 2.0  # for each rate
    disk_bytes: int = 512 << 20
    num_files: int = 400
    num_starts: int = 9


QUICK: Final = Pace(0.5, 96 << 20, 100, 5)
Tell = Callable[[str, float], None]  # what is measured now, and how much of all is done


class Course:
    """One speed test on its way."""

    def __init__(self, folder: Path, pace: Pace, tell: Tell) -> None:
        self.folder, self.pace, self.tell = folder, pace, tell
        self.environment = read_environment(folder)
        self.readings: list[Reading] = []
        self.notes: list[str] = []
        self.facts = torch_child.Facts("", "")

    def run(self) -> SpeedTest:
        created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        start = time.monotonic()
        stages: list[tuple[str, float, Callable[[], None]]] = [
            ("reading from the disk", 0.0, self._disk),
            ("decoding images", 0.2, self._decode),
            ("copying memory", 0.4, self._memory),
            ("starting processes", 0.45, self._starts),
            ("starting torch", 0.5, self._torch),
        ]
        for what, share, stage in stages:
            self.tell(what, share)
            try:
                stage()
            except (DiskError, DecodeError, OSError, MemoryError, subprocess.SubprocessError) as error:
                self.notes.append(f"{what.capitalize()} was not measured: {error}.")
        self.tell("done", 1.0)
        return SpeedTest(
            created,
            self.environment,
            self.readings,
            time.monotonic() - start,
            str(self.folder),
            self.facts.torch_version,
            self.facts.cpu_capability,
            self.notes,
        )

    def _disk(self) -> None:
        self.readings += read_disk(self.folder, self.pace.disk_bytes, self.pace.num_files, self.notes.append)

    def _decode(self) -> None:
        if importlib.util.find_spec("PIL") is None:
            self.notes.append("Decoding images was not measured: Pillow is not installed (pip install pillow).")
            return
        self.readings += read_decoding(self.pace.seconds, int(self.environment.num_usable))

    def _memory(self) -> None:
        self.readings += read_memory(self.pace.seconds / 2)

    def _starts(self) -> None:
        self.readings += read_starts(self.pace.num_starts)

    def _torch(self) -> None:
        if importlib.util.find_spec("torch") is None:
            self.notes.append("What needs torch was not measured: it is not installed (pip install torch).")
            return
        number = 0
        for line in _child_lines(self.pace.seconds):
            match line:
                case torch_child.Facts():
                    self.facts = line
                case torch_child.Note(text):
                    self.notes.append(text)
                case torch_child.Told(reading):
                    self.readings.append(reading)
                    number += 1
                    self.tell(f"torch: {reading.name.replace('_', ' ')} done", min(0.98, 0.5 + 0.08 * number))


def _child_lines(seconds: float) -> Iterator[torch_child.Line]:
    """As they come. A child that dies leaves what it has told."""
    decoder = msgspec.json.Decoder(torch_child.Line)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        child = children.start(torch_child.__name__, str(seconds), folder=folder, errors=errors)
        limit = threading.Timer(_PATIENCE_S, child.kill)
        limit.start()
        try:
            assert child.stdout is not None
            for line in child.stdout:
                yield decoder.decode(line)
            if child.wait() != 0:
                errors.seek(0)
                last = children.last_words(errors.read())
                yield torch_child.Note(f"The part with torch ended early, exit code {child.returncode}: {last}")
        finally:
            limit.cancel()
            child.kill()
            child.communicate()
