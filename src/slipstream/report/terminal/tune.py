"""A tuning on a terminal: the headline, the table and the reasons.

On a narrow terminal the table first drops columns, and then cuts names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from slipstream.numbers import plural
from slipstream.records import Session, Tuning
from slipstream.report.terminal import layout
from slipstream.report.terminal.console import ConsoleStyle, styled
from slipstream.report.terminal.layout import MARGIN, heading
from slipstream.report.text.tune import (
    HEADINGS,
    Row,
    caveats,
    costs,
    gain,
    not_applicable,
    not_raced,
    reasons,
    table_rows,
    worths,
    writable,
)

_ALIGN = "lrrrrrlll"
_DROPPED_FIRST = ("batch", "memory", "samples/s", "numerics")  # the columns that are dropped until the names fit
_GAP = 2  # cells between two columns; layout.rows has the same padding
_STYLES = {"kept": "green", "rejected": "dim", "unsure": "yellow", "failed": "red"}
_MOST_APART = 4


def sentence_lines(session: Session, ink: ConsoleStyle) -> Iterator[Text]:
    yield from ink.wrap(gain(session), 1, "bold")
    for sentence in caveats(session):
        yield from ink.wrap(sentence, 1, "yellow")


def table_lines(tuning: Tuning, ink: ConsoleStyle) -> Iterator[Text]:
    rows = table_rows(tuning)
    columns = _columns(rows, ink)
    name_width = _name_width(rows, columns, ink)
    cells: list[list[layout.Cell]] = [[ink.text(HEADINGS[column], "dim") for column in columns]]
    for row in rows:
        cells.append([_cell(row, column, name_width, ink) for column in columns])
    yield from layout.rows(cells, "".join(_ALIGN[column] for column in columns), ink, indent=1)


def _columns(rows: list[Row], ink: ConsoleStyle) -> list[int]:
    """Returns the columns that are not empty. Columns of _DROPPED_FIRST are dropped until the longest name fits."""
    columns = [index for index in range(len(HEADINGS)) if any(row.cells[index] for row in rows)]
    for name in _DROPPED_FIRST:
        if _room_for_names(rows, columns, ink) >= _width(rows, 0):
            break
        columns = [index for index in columns if HEADINGS[index] != name]
    return columns


def _name_width(rows: list[Row], columns: list[int], ink: ConsoleStyle) -> int:
    return max(min(_room_for_names(rows, columns, ink), _width(rows, 0)), 10)


def _room_for_names(rows: list[Row], columns: list[int], ink: ConsoleStyle) -> int:
    return ink.width - 2 - sum(_width(rows, column) + _GAP for column in columns[1:])


def _width(rows: list[Row], column: int) -> int:
    return max(len(HEADINGS[column]), *(len(row.cells[column]) for row in rows))


def _cell(row: Row, column: int, name_width: int, ink: ConsoleStyle) -> Text:
    text = row.cells[column]
    if column == 0:
        return styled(ink.clip(text, name_width), "bold" if row.kind in ("base", "total") else "")
    if HEADINGS[column] == "verdict":
        return ink.text(text, _STYLES.get(row.verdict, "dim"))
    if HEADINGS[column] == "own gain":
        return ink.text(text, _STYLES.get(row.verdict, "dim"))
    if HEADINGS[column] == "relative to base":
        ratio, interval = row.relative_parts
        return ink.text(ratio, _STYLES.get(row.verdict, "")) + ink.text(f" {interval}" if interval else "", "dim")
    return ink.text(text, "dim" if row.kind in ("noise", "ceiling") or row.numerics == text == "unsound" else "")


def reason_lines(tuning: Tuning, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields the proof, what each kept technique adds, what `patch` can write, what kept techniques cost, why other
    techniques were not kept, what was not raced, and why some techniques do not apply."""
    yield from _listed("proof", worths(tuning), ink)
    yield from _listed("patch", writable(tuning), ink)
    yield from _listed("costs", costs(tuning), ink)
    yield from _listed("not kept", reasons(tuning), ink)
    yield from _listed("no time", not_raced(tuning), ink)
    folded = not_applicable(tuning)
    for index, (together, reason) in enumerate(folded[:_MOST_APART]):
        rest = len(folded) - _MOST_APART
        more = f" (and {plural(rest, 'more reason')})" if rest > 0 and index == _MOST_APART - 1 else ""
        lines = ink.wrap(f"{together}: {reason}{more}", MARGIN, "dim")
        if not index:
            lines[0] = heading("no use", "", ink) + lines[0][MARGIN:]
        yield from lines


def _listed(word: str, entries: Iterable[tuple[str, str]], ink: ConsoleStyle) -> Iterator[Text]:
    for name, sentence in ((ink.clean(name), sentence) for name, sentence in entries):
        lines = ink.wrap(f"{name}: {sentence}", MARGIN, "dim")
        lines[0] = heading(word, "", ink) + Text(name)[: len(lines[0]) - MARGIN] + lines[0][MARGIN + len(name) :]
        yield from lines
        word = ""
