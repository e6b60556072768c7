"""The step on a terminal: its phases, the device's phases and the ceilings as bars of one scale, and the rate."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from slipstream.diagnose.steps.undisturbed import has_headline
from slipstream.numbers import as_count, in_ms
from slipstream.records import Session, Summary
from slipstream.report.terminal import layout
from slipstream.report.terminal.console import ConsoleStyle, style_of
from slipstream.report.terminal.layout import MARGIN, heading, legend_lines
from slipstream.report.text.check import training_time
from slipstream.report.text.step import LONGEST, idle_words, is_longest, known_ceilings, step_figure, why_no_ceilings

_VALUE_CELLS = 48  # "  6.3 ms  if compute were free ◀ if nothing waited"


def step_lines(session: Session, summary: Summary, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields the bars, all with the same scale, and their legends."""
    cells = max(min(ink.width, 110) - MARGIN - _VALUE_CELLS - 2, 12)
    known = [ms for _, ms, _ in known_ceilings(summary.ceilings)]
    device = summary.device_phases or {}
    scale = max(summary.step_ms, sum(device.values()), *known, 1e-9)
    figure, basis = step_figure(summary)
    value = ink.text(f"  {figure}", "bold") + ink.text(f"  {basis}", "dim")
    host = summary.host_phases or summary.phases
    yield heading("host" if device else "step", "", ink) + layout.stacked(host, scale, cells, ink) + value
    yield from legend_lines(host, summary.step_ms, in_ms, ink)
    if device:
        device_ms = sum(device.values())
        text = f"  {in_ms(device_ms)}{idle_words(summary)}"
        yield heading("device", "", ink) + layout.stacked(device, scale, cells, ink) + ink.text(text)
        yield from legend_lines(device, device_ms, in_ms, ink)
    yield from _ceiling_lines(session.command, summary, scale, cells, ink)
    yield from _rate(session, summary, ink)


def _ceiling_lines(command: str, summary: Summary, scale: float, cells: int, ink: ConsoleStyle) -> Iterator[Text]:
    known = known_ceilings(summary.ceilings)
    for index, (words, ms, phase) in enumerate(known):
        is_best = is_longest(ms, summary.ceilings)
        line = heading("" if index else "ceilings", "", ink) + layout.thin(ms, scale, cells, ink, style_of(phase))
        line += ink.text(f"  {in_ms(ms)}", "bold" if is_best else "") + ink.text(f"  {words}", "" if is_best else "dim")
        if is_best:
            line += ink.text(f" ◀ {LONGEST}", "bold")
        yield line
    if not known:
        lines = ink.wrap(why_no_ceilings(command, summary), MARGIN, "dim")
        lines[0] = heading("ceilings", "", ink) + lines[0][MARGIN:]
        yield from lines


def _rate(session: Session, summary: Summary, ink: ConsoleStyle) -> Iterator[Text]:
    parts = (
        [f"{as_count(summary.samples_per_s)} samples/s"] if summary.samples_per_s > 0 and has_headline(summary) else []
    )
    parts += [ahead] if (ahead := training_time(session)) else []
    for index, line in enumerate(ink.fold(parts, ink.width - MARGIN)):
        yield heading("" if index else "rate", "", ink) + Text(line)
