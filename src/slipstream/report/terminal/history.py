"""Saved sessions as a list, and as JSON. The renderer uses rows of the index and does not open sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec
from rich.console import Console
from rich.text import Text

from slipstream.diagnose.steps.undisturbed import has_headline
from slipstream.numbers import as_count, as_ratio, between_ratios, in_bytes, in_ms, plural
from slipstream.records import IndexEntry, Recipe
from slipstream.report.terminal.console import ConsoleStyle, styled
from slipstream.report.terminal.layout import rows

_HEADINGS = ("session", "when", "command", "script", "commit", "step", "samples/s", "bound", "result")
_ALIGN = "lllllrrll"
# A console narrower than this leaves the column out.
_NEEDS = {"when": 120, "samples/s": 100, "bound": 100}
_FEWEST = 12  # width of the script's column
_MOST_NAMED = 5  # files that are not sessions
_NOTHING = str(Recipe())


def render_history(entries: Sequence[IndexEntry], console: Console) -> None:
    ink = ConsoleStyle(console)
    for line in _lines(entries, ink):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)


def to_json(entries: Sequence[IndexEntry]) -> bytes:
    """Returns one JSON document with the sessions, in the order of `entries`."""
    return msgspec.json.format(msgspec.json.encode({"schema": 1, "sessions": list(entries)}), indent=2)


def _lines(entries: Sequence[IndexEntry], ink: ConsoleStyle) -> Iterator[Text]:
    readable = [entry for entry in entries if entry.is_readable]
    columns = [index for index, word in enumerate(_HEADINGS) if ink.width >= _NEEDS.get(word, 0)]
    cells = [[_cells(entry, ink)[index] for index in columns] for entry in readable]
    at = columns.index(_HEADINGS.index("script"))
    used = sum(max((len(row[index]) for row in cells), default=0) + 2 for index in range(len(columns)) if index != at)
    room = max(_FEWEST, ink.width - used - 4)
    for row in cells:
        row[at] = ink.clip(row[at], room)
    headings = [styled(_HEADINGS[index], "bold") for index in columns]
    yield from rows([headings, *cells], "".join(_ALIGN[index] for index in columns), ink, indent=1)
    for entry in [entry for entry in readable if entry.ratio][:1]:
        yield from ink.wrap(f"{entry.name} kept: {entry.recipe}", 1, "dim")
    if lost := [entry.name for entry in entries if not entry.is_readable]:
        named = ", ".join([*lost[:_MOST_NAMED], *(["..."] if len(lost) > _MOST_NAMED else [])])
        yield from ink.wrap(f"{plural(len(lost), 'file')} could not be read as a session: {named}", 1, "dim")


def _cells(entry: IndexEntry, ink: ConsoleStyle) -> list[str]:
    """Returns the cells, in the order of the column headings. A "~" marks a check with too few undisturbed steps for a
    median."""
    about = "" if entry.command == "tune" or has_headline(entry) else "~"
    return [
        ink.clean(entry.name),
        _moment(entry.created),
        ink.clean(entry.command),
        ink.clean(entry.script or "this program"),
        ink.clean(f"{entry.commit[:9]}{'+' if entry.is_changed else ''}"),
        ink.clean(f"{about}{in_ms(entry.step_ms)}") if entry.step_ms is not None else "",
        f"{about}{as_count(entry.samples_per_s)}" if entry.samples_per_s else "",
        ink.clean(entry.bound if entry.bound != "unknown" else ""),
        ink.clean(_result(entry)),
    ]


def _moment(created: str) -> str:
    """Returns the time in the reader's time zone. The session stores the time with its own time zone."""
    try:
        return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):  # the text is no time, or its year is out of the calendar's range
        return ""


def _result(entry: IndexEntry) -> str:
    if entry.largest_batch is not None:
        return f"batch of {entry.largest_batch:,} fits"
    if entry.peak_bytes is not None:
        return f"peak {in_bytes(entry.peak_bytes)}"
    if entry.ratio is None and entry.recipe not in ("", _NOTHING):
        return f"fits with {entry.recipe}"
    if entry.ratio is None:
        return "nothing kept" if entry.command == "tune" else ""
    interval = between_ratios(entry.ratio_low or 0.0, entry.ratio_high or 1e9)
    return f"{as_ratio(entry.ratio)} ({interval}), {plural(entry.recipe.count(' + ') + 1, 'technique')}"
