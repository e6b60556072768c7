"""What the parts of a bar are: name, value and share of each, folded between entries and never inside one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.text import Text

from slipstream.report.ink import Ink, style_of, styled
from slipstream.report.quantity import in_percent
from slipstream.report.section import MARGIN


def legend_lines(parts: Mapping[str, float], total: float, say: Callable[[float], str], ink: Ink) -> Iterator[Text]:
    """Of the parts that are there."""
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
