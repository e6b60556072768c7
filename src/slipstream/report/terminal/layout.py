"""Layout of the terminal reports: bars made of characters, their legends, headings in the margin, and rich's tables as
lines. This module does not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from slipstream.numbers import in_percent
from slipstream.report.terminal.console import ConsoleStyle, style_of, styled


def stacked(parts: Mapping[str, float], scale: float, width: int, ink: ConsoleStyle) -> Text:
    """Returns a bar of all parts. Each part ends at the rounded sum of the parts so far, so that rounding errors do not
    add up."""
    bar = Text()
    total = 0.0
    filled = 0
    for name, value in parts.items():
        total += max(value, 0.0)
        end = _cells(total, scale, width)
        bar.append(ink.phase_glyph(name) * (end - filled), style=style_of(name))
        filled = max(filled, end)
    bar.append(" " * (width - filled))
    return bar


def thin(value: float, scale: float, width: int, ink: ConsoleStyle, style: str) -> Text:
    """Returns a thin bar for one value, on the same scale as the bar above it."""
    cells = max(_cells(value, scale, width), 1)
    bar = styled(("━" if ink.has_unicode else "-") * cells, style)
    bar.append(" " * (width - cells))
    return bar


def _cells(value: float, scale: float, width: int) -> int:
    return min(round(value / scale * width), width) if scale > 0 else 0


def legend_lines(
    parts: Mapping[str, float], total: float, say: Callable[[float], str], ink: ConsoleStyle
) -> Iterator[Text]:
    """Yields the legend: name, value and share of each part that is not empty. Lines break only between entries."""
    line = Text(" " * MARGIN)
    for name, value in parts.items():
        if value <= 0:
            continue
        glyph = "■" if ink.has_colour and ink.has_unicode else ink.phase_glyph(name)
        entry = styled(glyph, style_of(name)) + Text(f" {ink.clean(name.replace('_', ' '))} ")
        entry += ink.text(f"{say(value)} {in_percent(value / total if total else 0)}", "dim")
        if line.cell_len + entry.cell_len > ink.width and line.plain.strip():
            line.rstrip()
            yield line
            line = Text(" " * MARGIN)
        line = line + entry + Text("   ")
    line.rstrip()
    yield line


MARGIN = 10
_WIDEST = 10_000  # cells: rich cuts no cell of a narrower table


def heading(word: str, rest: str, ink: ConsoleStyle) -> Text:
    return styled(f" {word:<{MARGIN - 1}}", "bold") + ink.text(rest, "dim")


def wrapped(word: str, sentence: str, ink: ConsoleStyle) -> list[Text]:
    """Returns a heading and a sentence, on as many lines as the sentence needs."""
    lines = ink.wrap(sentence, MARGIN, "dim")
    return [heading(word, "", ink) + lines[0][MARGIN:], *lines[1:]] if lines else []


def folded(word: str, parts: Iterable[str], ink: ConsoleStyle) -> Iterator[Text]:
    """Yields a heading and its parts, on as many lines as the parts need."""
    for line in ink.fold(parts, ink.width - MARGIN - 1):
        yield heading(word, line, ink)
        word = ""


Cell = Text | str


def rows(cells: Sequence[Sequence[Cell]], align: str, ink: ConsoleStyle, indent: int = 2) -> list[Text]:
    """Returns a table as lines. `align` has one letter per column: l or r. No cell is cut or wrapped, and no line ends
    in blanks."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for side in align:
        table.add_column(justify="right" if side == "r" else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    lines = ink.console.render_lines(table, ink.console.options.update(max_width=_WIDEST), pad=False)
    texts = [Text.assemble(" " * indent, *((piece.text, piece.style or "") for piece in line)) for line in lines]
    for text in texts:
        text.rstrip()
    return texts
