"""Horizontal bars made of characters. Knows widths and shares, not what they mean."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from slipstream.report.ink import Ink, style_of, styled


def stacked(parts: Mapping[str, float], scale: float, width: int, ink: Ink) -> Text:
    """Parts end to end. Cells are rounded at the running sum, so that the whole is never longer than its parts."""
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


def thin(value: float, scale: float, width: int, ink: Ink, style: str) -> Text:
    """One value as a line on the same scale as the bar above it."""
    cells = max(_cells(value, scale, width), 1)
    bar = styled(("━" if ink.has_unicode else "-") * cells, style)
    bar.append(" " * (width - cells))
    return bar


def _cells(value: float, scale: float, width: int) -> int:
    return min(round(value / scale * width), width) if scale > 0 else 0
