"""Reads how soon the system drops unused files from the page cache. Virtual machines that should stay small use DAMON,
Linux's memory monitor, for this, even if much memory is free. Only reads the settings."""

from __future__ import annotations

from pathlib import Path


def read_idle_file_s(root: Path = Path("/")) -> float | None:
    """Returns the seconds without use after which a file is dropped. Returns None if files stay as long as there is
    memory, which is usual, or if the settings cannot be read."""
    known = [*_read_schemes(root / "sys/kernel/mm/damon/admin/kdamonds"), *_read_module(root)]
    return min((seconds for seconds in known if seconds > 0), default=None)  # 0: it could not be read


def _read_schemes(kdamonds: Path) -> list[float]:
    found = []
    for kdamond in kdamonds.glob("[0-9]*"):
        if _read(kdamond / "state") != "on":
            continue
        for context in kdamond.glob("contexts/[0-9]*"):
            interval_us = _number(context / "monitoring_attrs/intervals/aggr_us")
            for scheme in context.glob("schemes/[0-9]*"):
                if _read(scheme / "action") == "pageout":
                    found.append(_number(scheme / "access_pattern/age/min") * interval_us / 1e6)
    return found


def _read_module(root: Path) -> list[float]:
    """Reads the settings of the kernel module damon_reclaim. Its age is in microseconds."""
    parameters = root / "sys/module/damon_reclaim/parameters"
    return [_number(parameters / "min_age") / 1e6] if _read(parameters / "enabled") == "Y" else []


def _number(path: Path) -> float:
    text = _read(path)
    return float(text) if text.isdecimal() else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
