"""Runs the whole speed test, stage by stage. A stage that cannot be measured gives a note, and the other stages still
run.

`read_memory` measures how fast one core copies memory, because copies are most of the work in collating, pinning and
handing over batches. `read_starts` measures the start of a Python process. The child process with torch measures the
import of torch."""

from __future__ import annotations

import datetime
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from slipstream.machine.environment import read_environment
from slipstream.machine.speedtest import subprocesses, torch_process
from slipstream.machine.speedtest.decode import DecodeError, read_decoding
from slipstream.machine.speedtest.disk import DiskError, read_disk
from slipstream.records import Reading, SpeedTest

_TIMEOUT_S: Final = 240.0  # for the child process with torch


class SpeedtestOptions(msgspec.Struct, frozen=True):
    """The duration and size of each stage."""

    seconds: float = 2.0  # duration of the measurement of each rate
    disk_bytes: int = 512 << 20
    num_files: int = 400
    num_starts: int = 9


QUICK: Final = SpeedtestOptions(0.5, 96 << 20, 100, 5)
Tell = Callable[[str, float], None]  # gets what is measured now, and the share of the test that is done


class SpeedtestRun:
    """A speed test that is running."""

    def __init__(self, folder: Path, options: SpeedtestOptions, tell: Tell) -> None:
        self.folder, self.options, self.tell = folder, options, tell
        self.environment = read_environment(folder)
        self.readings: list[Reading] = []
        self.notes: list[str] = []
        self.facts = torch_process.TorchProcessFacts("", "")

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
        self.readings += read_disk(self.folder, self.options.disk_bytes, self.options.num_files, self.notes.append)

    def _decode(self) -> None:
        if importlib.util.find_spec("PIL") is None:
            self.notes.append("Decoding images was not measured: Pillow is not installed (pip install pillow).")
            return
        self.readings += read_decoding(self.options.seconds, int(self.environment.num_usable))

    def _memory(self) -> None:
        self.readings += read_memory(self.options.seconds / 2)

    def _starts(self) -> None:
        self.readings += read_starts(self.options.num_starts)

    def _torch(self) -> None:
        if importlib.util.find_spec("torch") is None:
            self.notes.append("The stages with torch were not measured: torch is not installed (pip install torch).")
            return
        number = 0
        for line in _child_lines(self.options.seconds):
            match line:
                case torch_process.TorchProcessFacts():
                    self.facts = line
                case torch_process.TorchProcessNote(text):
                    self.notes.append(text)
                case torch_process.TorchProcessReport(reading):
                    self.readings.append(reading)
                    number += 1
                    self.tell(f"torch: {reading.name.replace('_', ' ')} done", min(0.98, 0.5 + 0.08 * number))


def _child_lines(seconds: float) -> Iterator[torch_process.Line]:
    """Yields the lines of the child process as they arrive. If the child dies, its earlier lines are still used."""
    decoder = msgspec.json.Decoder(torch_process.Line)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        child = subprocesses.start(torch_process.__name__, str(seconds), folder=folder, errors=errors)
        limit = threading.Timer(_TIMEOUT_S, child.kill)
        limit.start()
        try:
            assert child.stdout is not None
            for line in child.stdout:
                yield decoder.decode(line)
            if child.wait() != 0:
                errors.seek(0)
                last = subprocesses.last_line(errors.read())
                yield torch_process.TorchProcessNote(
                    f"The part with torch ended early, exit code {child.returncode}: {last}"
                )
        finally:
            limit.cancel()
            child.kill()
            child.communicate()


_CACHES: Final = 256 << 20  # bytes; more than any CPU cache has, so that the memory itself is measured


def read_memory(seconds: float, num_bytes: int = _CACHES) -> list[Reading]:
    source, target = bytearray(num_bytes), bytearray(num_bytes)
    view = memoryview(target)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        view[:] = source
        times.append(time.perf_counter() - start)
    rate = num_bytes / min(times) / 1e9
    return [Reading("memory_copy", rate, "GB/s", detail=f"one core, {num_bytes >> 20} MB; a copied byte counts once")]


def read_starts(num_starts: int) -> list[Reading]:
    times = []
    for _ in range(num_starts):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True, stdin=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return [Reading("process_start", statistics.median(times) * 1000, "ms", detail="python -c pass")]
