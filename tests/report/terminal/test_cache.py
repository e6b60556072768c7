"""The cache of decoded images as lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from slipstream.data.images.cache_folder import CacheContents
from slipstream.report.terminal.cache import grouped, render_cache


def shown(holdings: CacheContents) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    render_cache(holdings, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_all_content_is_listed() -> None:
    text = shown(
        CacheContents(
            "/home/ada/.cache/slipstream", 240, 180_000_000, 2, 7200.0, 60.0, 73 * 10**9, [("/data", 0.75), ("", 0.25)]
        )
    )
    assert "240 decoded images, 180 MB" in text
    assert "1 min to 2 h ago" in text
    assert "2 unfinished files" in text
    assert " 75%  /data" in text and " 25%  memory, not files" in text
    assert "73 GB on that disk" in text


def test_an_empty_cache_names_what_fills_it() -> None:
    text = shown(CacheContents("/nowhere", free_bytes=10**9))
    assert "decode_cache" in text and "from" not in text


def test_folders_of_classes_are_one_folder() -> None:
    classes = [(f"/data/train/{name}", 0.05) for name in range(18)] + [("/other", 0.1)]
    (folder, share), rest = grouped(classes)
    assert folder == "/data/train" and share == pytest.approx(0.9) and rest == ("/", 0.1)
    assert grouped([("/a", 1.0)]) == [("/a", 1.0)]
