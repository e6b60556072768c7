"""The memory of a step on a terminal.

The report shows what fills the peak, when the peak is reached, which modules and lines own the memory, what each remedy
would free, and what other batch sizes would need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from slipstream.memory.forecast import forecast
from slipstream.memory.remedies import list_remedies
from slipstream.numbers import in_bytes, in_percent
from slipstream.records import Footprint, Moment, Session
from slipstream.report.terminal import layout
from slipstream.report.terminal.console import ConsoleStyle, style_of, styled
from slipstream.report.terminal.footer import machine_lines, note_lines
from slipstream.report.terminal.layout import MARGIN, heading, legend_lines
from slipstream.report.text.check import headline_lines
from slipstream.report.text.memory import (
    about,
    allocator_sentence,
    batch_sentence,
    cached_sentence,
    growth_sentence,
    line_holders,
    module_holders,
    samples_of,
    summarise,
)

_MOST_MODULES = 8
_MOST_LINES = 6
_WEIGHTS = ("parameters", "gradients", "optimizer_state")
_LEVELS, _PLAIN_LEVELS = "▁▂▃▄▅▆▇█", ".:-=+*%#"


def render_memory(session: Session, console: Console) -> None:
    ink = ConsoleStyle(console)
    for lines in _sections(session, ink):
        for line in lines:
            console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)


def _sections(session: Session, ink: ConsoleStyle) -> Iterator[Iterable[Text]]:
    yield headline_lines(session, ink)
    yield ink.wrap(summarise(session), 1, "bold")
    if session.footprints:
        footprint = session.footprints[0]
        yield [Text()]
        yield _peak(footprint, ink)
        yield _course(footprint, ink)
        yield [Text()]
        yield _modules(footprint, ink)
        yield _lines(footprint, session.cwd, ink)
        yield [Text()]
        yield _remedies(footprint, ink)
        yield _batches(session, ink)
        yield _growth(session, ink)
        yield _allocator(footprint, ink)
    yield [Text()]
    yield machine_lines(session.environment, ink)
    yield note_lines(session, ink)


def _peak(footprint: Footprint, ink: ConsoleStyle) -> Iterator[Text]:
    cells = _cells(ink)
    drawn = layout.stacked(footprint.kinds, footprint.peak_bytes, cells, ink)
    yield heading("peak", "", ink) + drawn + ink.text(f"  {in_bytes(footprint.peak_bytes)}", "bold")
    yield from legend_lines(footprint.kinds, footprint.peak_bytes, in_bytes, ink)


def _course(footprint: Footprint, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields the live bytes over the step, coloured by phase, and the peak of each phase."""
    line = Text()
    levels = _LEVELS if ink.has_unicode else _PLAIN_LEVELS
    for moment in _spread(footprint, _cells(ink)):
        share = sum(moment.num_bytes) / max(1, footprint.peak_bytes)
        line.append(levels[min(len(levels) - 1, int(share * len(levels)))], style=style_of(moment.phase))
    yield heading("step", "", ink) + line
    named = {phase: sum(kinds.values()) for phase, kinds in footprint.phases.items() if phase != "other"}
    peaks = [f"{phase} {in_bytes(most)}" for phase, most in named.items()]
    for folded in ink.fold([f"at most: {peaks[0]}", *peaks[1:]] if peaks else [], ink.width - MARGIN - 1):
        yield heading("", folded, ink)


def _spread(footprint: Footprint, cells: int) -> Iterator[Moment]:
    """Yields the highest moment of each cell. A cell without an allocation repeats the last moment before it."""
    last = Moment(0.0, "other", [0])
    moments = list(footprint.moments)
    for cell in range(cells):
        until_ms = footprint.step_ms * (cell + 1) / cells
        inside = []
        while moments and (moments[0].at_ms <= until_ms or cell == cells - 1):
            inside.append(moments.pop(0))
        if inside:
            last = max(inside, key=lambda moment: sum(moment.num_bytes))
        yield last
        last = inside[-1] if inside else last


def _modules(footprint: Footprint, ink: ConsoleStyle) -> Iterator[Text]:
    rows: list[list[str]] = []
    for name, class_name, kinds in module_holders(footprint)[:_MOST_MODULES]:
        total = kinds.total()
        weights = sum(kinds[kind] for kind in _WEIGHTS)
        parts = (("activations", kinds["activations"]), ("temporary", kinds["temporary"]), ("weights", weights))
        detail = ", ".join(f"{word} {in_bytes(size)}" for word, size in parts if size >= 0.1 * total)
        share = in_percent(total / footprint.peak_bytes)
        rows.append([ink.tail(name, 30), ink.clip(class_name, 24), in_bytes(total), share, detail])
    yield from _table("modules", rows, "llrrl", ink)


def _lines(footprint: Footprint, cwd: str, ink: ConsoleStyle) -> Iterator[Text]:
    rows: list[list[str]] = []
    for name, source, kinds in line_holders(footprint, cwd)[:_MOST_LINES]:
        share = in_percent(kinds.total() / footprint.peak_bytes)
        rows.append([ink.tail(name, 34), in_bytes(kinds.total()), share, source])
    yield from _table("lines", rows, "lrrl", ink)


def _remedies(footprint: Footprint, ink: ConsoleStyle) -> Iterator[Text]:
    rows: list[list[str]] = []
    for remedy in list_remedies(footprint):
        left = in_bytes(footprint.peak_bytes - remedy.freed_bytes)
        rows.append([remedy.name, f"-{in_bytes(remedy.freed_bytes)}", ink.clean(f"→ {left}"), about(remedy)])
    yield from _table("frees", rows, "lrrl", ink)


def _batches(session: Session, ink: ConsoleStyle) -> Iterator[Text]:
    made = forecast(session.footprints)
    if made is None:
        return
    yield from _titled("batch", ink.wrap(batch_sentence(made, samples_of(session)), MARGIN), ink)


def _growth(session: Session, ink: ConsoleStyle) -> Iterator[Text]:
    if sentence := cached_sentence(session):
        yield from _titled("cached", ink.wrap(sentence, MARGIN), ink)
    if sentence := growth_sentence(session):
        yield from _titled("growing", ink.wrap(sentence, MARGIN, "yellow"), ink)


def _allocator(footprint: Footprint, ink: ConsoleStyle) -> Iterator[Text]:
    if sentence := allocator_sentence(footprint):
        yield from _titled("reserved", ink.wrap(sentence, MARGIN), ink)


def _table(word: str, rows: list[list[str]], align: str, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields a table. The last column gets the width that the other columns leave."""
    used = sum(max((cell_len(row[index]) for row in rows), default=0) + 2 for index in range(len(align) - 1))
    room = max(12, ink.width - MARGIN - used - 1)
    cells: list[list[layout.Cell]] = [[*row[:-1], styled(ink.clip(row[-1], room), "dim")] for row in rows]
    yield from _titled(word, layout.rows(cells, align, ink, indent=MARGIN), ink)


def _titled(word: str, lines: list[Text], ink: ConsoleStyle) -> Iterator[Text]:
    for index, line in enumerate(lines):
        yield line if index else heading(word, "", ink) + line[MARGIN:]


def _cells(ink: ConsoleStyle) -> int:
    return max(min(ink.width, 110) - MARGIN - 14, 12)
