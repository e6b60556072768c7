"""The first line of a report: the script, and what the report rests on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from slipstream.records import Session
from slipstream.report.ink import Ink, styled
from slipstream.report.memory_words import MEMORY, observed
from slipstream.report.tune_words import raced
from slipstream.report.verdict import complaint, ending, script_of, watched


def basis(session: Session) -> str:
    """ "48 steps watched · stopped after 31 s"."""
    if session.tuning is not None:
        return raced(session)
    parts = observed(session) if session.command == MEMORY else [watched(session)]
    return " · ".join(filter(None, [*parts, ending(session)]))


def headline_lines(session: Session, ink: Ink) -> Iterator[Text]:
    """Script on the left, what the report rests on to the right; under each other where they do not fit."""
    right = ink.clean(basis(session))
    left = styled(f" slipstream {ink.clean(session.command)}  ", "dim")
    left += styled(ink.clip(script_of(session), max(ink.width - left.cell_len - 1, 20)), "bold")
    blanks = ink.width - left.cell_len - len(right) - 1
    if blanks >= 2:
        yield left + Text(" " * blanks) + styled(right, "dim")
    else:
        yield left
        yield styled(f" {right}", "dim")
    if said := complaint(session):
        yield styled(f" {ink.clip(said, ink.width - 2)}", "red")
