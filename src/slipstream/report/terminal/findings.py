"""Findings on a terminal: the first findings in full, the others on one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from slipstream.numbers import as_gain
from slipstream.records import Finding
from slipstream.report.terminal.console import ConsoleStyle, styled
from slipstream.report.text.locations import where

NUM_IN_FULL = 3
_INDENT = 5


def finding_lines(findings: Sequence[Finding], cwd: str, ink: ConsoleStyle) -> Iterator[Text]:
    for number, finding in enumerate(findings, start=1):
        if number <= NUM_IN_FULL:
            yield _title(number, finding, ink)
            yield from _details(finding, cwd, ink)
        else:
            yield one_line(number, finding, cwd, ink)


def one_line(number: int, finding: Finding, cwd: str, ink: ConsoleStyle) -> Text:
    """Returns title and source location. Only the title is shortened, because a shortened location is useless."""
    place = where(finding.site, cwd)
    line = _number(number, finding, ink)
    room = ink.width - line.cell_len - 2 - (len(place) + 2 if place else 0)
    line += Text(ink.clip(finding.title, max(room, 20)))
    return line + ink.text(f"  {place}", "cyan") if place else line


def _number(number: int, finding: Finding, ink: ConsoleStyle) -> Text:
    line = styled(f" {number:>2}  ", "bold")
    return line + ink.text(f"{as_gain(finding.predicted_gain):<12}", "bold green")


def _title(number: int, finding: Finding, ink: ConsoleStyle) -> Text:
    """Returns the title, followed by the cause and its techniques if they fit on the line."""
    line = _number(number, finding, ink)
    line += styled(ink.clip(finding.title, max(ink.width - line.cell_len - 1, 20)), "bold")
    for names in (finding.cause, " → " + ", ".join(finding.techniques) if finding.techniques else ""):
        tail = ink.text(f"  {names}" if names is finding.cause else names, "dim")
        if line.cell_len + tail.cell_len > ink.width:
            break
        line += tail
    return line


def _details(finding: Finding, cwd: str, ink: ConsoleStyle) -> Iterator[Text]:
    yield from ink.wrap(finding.evidence, _INDENT, "dim")
    margin = " " * _INDENT
    if finding.site:
        place = ink.clean(where(finding.site, cwd))
        source = ink.clip(finding.site.text, max(ink.width - _INDENT - len(place) - 3, 20))
        yield Text(margin) + styled(place, "cyan") + styled(f"  {source}" if source else "", "dim")
    if finding.change:
        yield from _change(finding.change, margin, ink)
    if finding.advice:  # the advice refers to the change: "Or ...", "And ...", "The same for ..."
        yield from ink.wrap(finding.advice, _INDENT + 2, "dim")


def _change(change: str, margin: str, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields the lines to write. They are never shortened, so that the user can copy them."""
    lead = ink.text("→ ", "green")
    for source in filter(str.strip, change.splitlines()):
        indent = len(source) - len(source.lstrip())
        yield Text(margin) + lead + styled(" " * indent + ink.clean(source), "green")
        lead = Text("  ")
