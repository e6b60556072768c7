"""The cache of decoded images, as lines. The renderer gets the contents as a value and does not read the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.text import Text

from slipstream.data.images.cache_folder import CacheContents
from slipstream.numbers import in_bytes, in_percent, in_seconds, plural
from slipstream.report.terminal.console import ConsoleStyle
from slipstream.report.terminal.layout import MARGIN, heading

_MOST_SOURCES: Final = 5


def render_cache(holdings: CacheContents, console: Console) -> None:
    ink = ConsoleStyle(console)
    for line in _lines(holdings, ink):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)


def _lines(holdings: CacheContents, ink: ConsoleStyle) -> Iterator[Text]:
    room = ink.width - MARGIN - 1
    yield heading("cache", ink.tail(holdings.folder, room), ink)
    if not holdings.num_images and not holdings.num_unfinished:
        yield heading("holds", "nothing; the technique decode_cache fills the cache", ink)
        yield heading("free", f"{in_bytes(holdings.free_bytes)} on that disk", ink)
        return
    yield heading("holds", f"{plural(holdings.num_images, 'decoded image')}, {in_bytes(holdings.num_bytes)}", ink)
    if holdings.num_images:
        yield heading("kept", f"{_ages(holdings)} ago", ink)
    if holdings.num_unfinished:
        yield heading(
            "", f"{plural(holdings.num_unfinished, 'unfinished file')} of a run that is active or was killed", ink
        )
    word = "from"
    for source, share in grouped(holdings.sources)[:_MOST_SOURCES]:
        place = f"{source or 'memory, not files'}"
        yield heading(word, f"{in_percent(share):>4}  {ink.tail(place, room - 6)}", ink)
        word = ""
    yield heading("free", f"{in_bytes(holdings.free_bytes)} on that disk", ink)


def _ages(holdings: CacheContents) -> str:
    oldest, newest = in_seconds(holdings.oldest_s), in_seconds(holdings.newest_s)
    return oldest if oldest == newest else f"{newest} to {oldest}"


def grouped(sources: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Groups sibling folders, such as one folder per class, under their parent folder."""
    if len(sources) <= _MOST_SOURCES:
        return sources
    shares: dict[str, float] = {}
    for source, share in sources:
        parent = os.path.dirname(source)
        shares[parent] = shares.get(parent, 0.0) + share
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return grouped(ordered) if len(ordered) < len(sources) else ordered
