"""The report of a session on a terminal, with colour and Unicode as far as the console supports them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import chain

from rich.console import Console
from rich.text import Text

from slipstream.records import Session
from slipstream.report.terminal.anatomy import anatomy_lines
from slipstream.report.terminal.console import ConsoleStyle
from slipstream.report.terminal.findings import finding_lines, one_line
from slipstream.report.terminal.fit import render_fitting
from slipstream.report.terminal.footer import machine_lines, note_lines
from slipstream.report.terminal.layout import wrapped
from slipstream.report.terminal.memory import render_memory
from slipstream.report.terminal.stages import stage_lines
from slipstream.report.terminal.step import step_lines
from slipstream.report.terminal.tune import reason_lines, sentence_lines, table_lines
from slipstream.report.text.check import evaluation, headline_lines, verdict, warning
from slipstream.report.text.memory import MEMORY, summarise


def render_session(session: Session, console: Console) -> None:
    """Prints the whole report. The report of a session without steps is a sentence, the machine and the notes."""
    if session.fitting is not None:
        render_fitting(session, session.fitting, console)
        return
    if session.command == MEMORY:
        render_memory(session, console)
        return
    ink = ConsoleStyle(console)
    _print(headline_lines(session, ink), console)
    _print(_verdict(session, ink), console)
    for section in _sections(session, ink):
        lines = list(section)
        if lines:
            console.print()
            _print(lines, console)


def render_to_text(session: Session) -> str:
    """Returns the whole report as plain text, for `print` in a notebook or a program."""
    text = StringIO()
    render_session(session, Console(file=text, width=100, no_color=True))
    return text.getvalue()


def render_brief(session: Session, console: Console) -> None:
    """Prints the report for `--quiet`: the sentences at the top, and one line for each finding. For a tuning or a fit,
    the table replaces the findings. For the memory of a step, there is only the sentence."""
    ink = ConsoleStyle(console)
    if session.fitting is not None:
        render_fitting(session, session.fitting, console, is_brief=True)
        return
    if session.command == MEMORY:
        _print(ink.wrap(summarise(session), 1, "bold"), console)
        return
    _print(_verdict(session, ink), console)
    if session.tuning is not None:
        _print(table_lines(session.tuning, ink), console)
        return
    _print((one_line(number, each, session.cwd, ink) for number, each in enumerate(session.findings, 1)), console)


def _sections(session: Session, ink: ConsoleStyle) -> Iterator[Iterable[Text]]:
    summary = session.summary
    if session.tuning is not None:
        yield table_lines(session.tuning, ink)
        yield reason_lines(session.tuning, ink)
    elif summary is not None and summary.num_steps > 0:
        yield step_lines(session, summary, ink)
        yield finding_lines(session.findings, session.cwd, ink)
        model = anatomy_lines(session.anatomy, summary, session.cwd, ink) if session.anatomy else ()
        yield chain(stage_lines(session, summary, ink), model)
    yield _footer(session, ink)


def _footer(session: Session, ink: ConsoleStyle) -> Iterator[Text]:
    if (sentence := evaluation(session)) and session.tuning is None:
        yield from wrapped("eval", sentence, ink)
    yield from machine_lines(session.environment, ink)
    yield from note_lines(session, ink)


def _verdict(session: Session, ink: ConsoleStyle) -> list[Text]:
    lines = list(sentence_lines(session, ink)) if session.tuning is not None else ink.wrap(verdict(session), 1, "bold")
    return lines + (ink.wrap(sentence, 1, "bold red") if (sentence := warning(session)) else [])


def _print(lines: Iterable[Text], console: Console) -> None:
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)
