"""Reads DAMON's settings from a tree of small files like that of Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.machine.page_cache import read_idle_file_s


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def scheme(state: str = "on", action: str = "pageout") -> dict[str, str]:
    context = "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0"
    return {
        "sys/kernel/mm/damon/admin/kdamonds/0/state": state,
        f"{context}/monitoring_attrs/intervals/aggr_us": "5000000",
        f"{context}/schemes/0/action": action,
        f"{context}/schemes/0/access_pattern/age/min": "12",
    }


def test_pageout_scheme_with_an_age_of_a_minute(tmp_path: Path) -> None:
    lay(tmp_path, scheme())
    assert read_idle_file_s(tmp_path) == 60.0


def without(name: str) -> dict[str, str]:
    return {path: text for path, text in scheme().items() if not path.endswith(name)}


@pytest.mark.parametrize("files", [{}, scheme(state="off"), scheme(action="stat"), without("aggr_us"), without("min")])
def test_schemes_that_drop_nothing_or_cannot_be_read(tmp_path: Path, files: dict[str, str]) -> None:
    lay(tmp_path, files)
    assert read_idle_file_s(tmp_path) is None


def test_damon_reclaim_module(tmp_path: Path) -> None:
    parameters = "sys/module/damon_reclaim/parameters"
    lay(tmp_path, {f"{parameters}/enabled": "Y", f"{parameters}/min_age": "120000000"})
    assert read_idle_file_s(tmp_path) == 120.0
