"""What fits, as the page shows it: the table of every other renderer."""

from __future__ import annotations

from slipstream.records import Fitting
from slipstream.report.fit_words import FIT_ALIGN, FIT_HEADINGS, fit_rows
from slipstream.report.html.chart import Cell, Table


def fit_table(fitting: Fitting) -> Table:
    rows = fit_rows(fitting)
    columns = [index for index in range(len(FIT_HEADINGS)) if any(row[index] for row in rows)]
    return Table(
        "Relative to base: samples per second over those of the script as it is, with its 95% interval",
        [FIT_HEADINGS[index] for index in columns],
        "".join(FIT_ALIGN[index] for index in columns),
        [[Cell(row[index]) for index in columns] for row in rows],
        is_sortable=False,
    )
