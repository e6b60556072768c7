"""The result of a fit on a terminal: the sentence, the table, and what the user has to decide."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from slipstream.numbers import in_seconds, plural
from slipstream.records import Fitting, Session
from slipstream.report.terminal import layout
from slipstream.report.terminal.console import ConsoleStyle, styled
from slipstream.report.terminal.footer import machine_lines, note_lines
from slipstream.report.text.check import script_of
from slipstream.report.text.fit import FIT_ALIGN, FIT_HEADINGS, FitRow, fit_rows, remarks, sentence

_OUTCOME = FIT_HEADINGS.index("within the limit")


def render_fitting(session: Session, fitting: Fitting, console: Console, *, is_brief: bool = False) -> None:
    ink = ConsoleStyle(console)
    for line in _lines(session, fitting, ink, is_brief):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)


def _lines(session: Session, fitting: Fitting, ink: ConsoleStyle, is_brief: bool) -> Iterator[Text]:
    if not is_brief:
        trials = f"{plural(len(fitting.attempts), 'trial')} in {in_seconds(fitting.seconds_spent)}"
        left = styled(f" slipstream {ink.clean(session.command)}  ", "dim")
        yield left + styled(ink.clip(script_of(session), max(ink.width - left.cell_len - 1, 20)), "bold")
        yield styled(f" {trials}", "dim")
    yield from ink.wrap(sentence(fitting), 1, "bold")
    yield Text()
    yield from _table(fitting, ink)
    if is_brief:
        return
    for remark in remarks(fitting):
        yield Text()
        yield from ink.wrap(remark, 1, "dim")
    yield Text()
    yield from machine_lines(session.environment, ink)
    yield from note_lines(session, ink)


def _table(fitting: Fitting, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields the table, without empty columns."""
    rows = fit_rows(fitting)
    columns = [index for index in range(len(FIT_HEADINGS)) if any(row.cells[index] for row in rows)]
    cells: list[list[layout.Cell]] = [[ink.text(FIT_HEADINGS[column], "dim") for column in columns]]
    for row in rows:
        cells.append([ink.text(row.cells[column], _style(row) if column == _OUTCOME else "") for column in columns])
    yield from layout.rows(cells, "".join(FIT_ALIGN[column] for column in columns), ink, indent=1)


def _style(row: FitRow) -> str:
    return "red" if row.has_run_out else "green" if row.is_chosen else ""
