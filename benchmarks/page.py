"""Describes the machine and writes results as Markdown pages in benchmarks/results/."""

from __future__ import annotations

import datetime
import platform
import sys
from pathlib import Path

import psutil

RESULTS = Path(__file__).parent / "results"
_UNITS = ("avx512f", "avx512_bf16", "amx_bf16")
BY_HAND = "Written by hand."  # A page keeps the text from this line on when it is written again.


def processor() -> str:
    """The name of the processor, and the vector units that decide which recipe is best."""
    return " ".join([_processor_name(), *(unit for unit in _UNITS if unit in _flags())])


def _flags() -> set[str]:
    return next((set(line.split()) for line in _lines("/proc/cpuinfo") if line.startswith("flags")), set())


def _processor_name() -> str:
    names = (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    return next(names, platform.processor())


def machine() -> str:
    memory_gb = psutil.virtual_memory().total / 1e9
    load = psutil.getloadavg()[0]
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count()
    return (
        f"{processor()}, {cores} cores, {memory_gb:.0f} GB, {platform.system()}, "
        f"Python {platform.python_version()}, load {load:.1f} at the start of the page; {day}."
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def write_page(name: str, text: str) -> None:
    """Stores the page and prints it."""
    store_page(name, text)
    sys.stdout.write(text + "\n")


def store_page(name: str, text: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    _, mark, remarks = (path.read_text() if path.exists() else "").partition(BY_HAND)
    path.write_text(text + (f"\n{mark}{remarks}" if mark else ""))
