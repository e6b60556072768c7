"""Names the machine and keeps the results as Markdown pages under benchmarks/results/."""

from __future__ import annotations

import datetime
import platform
import sys
from pathlib import Path

import psutil

RESULTS = Path(__file__).parent / "results"


def processor() -> str:
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
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    sys.stdout.write(text + "\n")
