"""The table of a tuning and the reasons below it, as the page shows them."""

from __future__ import annotations

from slipstream.records import Tuning
from slipstream.report.html.chart import Cell, Table, Terms
from slipstream.report.tune_table import HEADINGS, Row, table_rows
from slipstream.report.tune_words import costs, not_applicable, reasons, worths

_NUMBERS = ("batch", "memory", "step ms", "samples/s")


def tune_table(tuning: Tuning) -> Table:
    """The rows of every other renderer; columns that are empty all the way down are left out."""
    rows = table_rows(tuning)
    columns = [index for index in range(len(HEADINGS)) if any(row.cells[index] for row in rows)]
    return Table(
        "Relative to base: the base's step over this one, with its 95% interval",
        [HEADINGS[index] for index in columns],
        "".join("r" if HEADINGS[index] in _NUMBERS else "l" for index in columns),
        [[_cell(row, index) for index in columns] for row in rows],
        row_styles=[f"row-{row.kind} is-{row.verdict.replace(' ', '-')}" for row in rows],
    )


def _cell(row: Row, column: int) -> Cell:
    text = row.cells[column]
    style = "code" if column == 0 and row.kind not in ("base", "total", "ceiling") else ""
    return Cell(text, _order(text) if HEADINGS[column] != "technique" else None, style)


def _order(text: str) -> float | None:
    """The number that a cell begins with."""
    words = text.replace(",", "").lstrip("~").split()
    try:
        number = float(words[0].rstrip("x")) if words else None
    except ValueError:
        return None
    units = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    return number * units.get(words[1], 1.0) if number is not None and len(words) > 1 else number


def whys(tuning: Tuning) -> list[Terms]:
    """Below the table; none that is empty."""
    lists = [
        Terms("What leaving it out costs", list(worths(tuning))),
        Terms("What it costs once", list(costs(tuning))),
        Terms("Why not the others", list(reasons(tuning))),
        Terms("Not applicable here", [_split(line) for line in not_applicable(tuning)], is_folded=True),
    ]
    return [each for each in lists if each.entries]


def _split(line: str) -> tuple[str, str]:
    names, _, reason = line.partition(": ")
    return names, reason
