"""What a console can show: its width, its characters, its colours.

This module cleans all text from the user's script, so that the text cannot move the cursor, be read as markup, or fail
to encode.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from slipstream.report.text.printable import printable

# slipstream's own symbols, for terminals that have only ASCII.
_PLAIN = str.maketrans({"·": "-", "–": "-", "—": "-", "µ": "u", "×": "x", "…": "...", "→": ">", "◀": "<", "■": "#"})

PHASE_STYLES = {
    "input": "yellow",
    "transfer": "magenta",
    "forward": "blue",
    "backward": "cyan",
    "optimizer": "green",
    "other": "bright_black",
}
# Kinds of live bytes, which have bars of their own.
KIND_STYLES = {
    "parameters": "blue",
    "optimizer_state": "green",
    "gradients": "cyan",
    "inputs": "yellow",
    "activations": "red",
    "temporary": "magenta",
}
# Without colour, each phase or kind has its own character.
_SHADES = {"input": "█", "transfer": "▚", "forward": "▓", "backward": "▒", "optimizer": "░", "other": "·"} | {
    "parameters": "█", "optimizer_state": "▚", "gradients": "▒", "inputs": "▞", "activations": "▓", "temporary": "░"
}  # fmt: skip
_LETTERS = {"input": "I", "transfer": "T", "forward": "F", "backward": "B", "optimizer": "O", "other": "."} | {
    "parameters": "P", "optimizer_state": "S", "gradients": "G", "inputs": "I", "activations": "A", "temporary": "T"
}  # fmt: skip


class ConsoleStyle:
    """The width, characters and colours of one console, determined once."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(console.width, 40)
        self.has_unicode = not console.options.ascii_only
        self.has_colour = console.color_system is not None and not console.no_color

    def phase_glyph(self, phase: str) -> str:
        if not self.has_unicode:
            return _LETTERS.get(phase, "-")
        return "█" if self.has_colour else _SHADES.get(phase, "─")

    def clean(self, text: str) -> str:
        """Returns the text on one line, with characters that this console can print."""
        return self._encodable(" ".join(text.split()))

    def _encodable(self, text: str) -> str:
        text = printable(text)
        if self.has_unicode:
            return text
        encoding = self.console.encoding or "ascii"
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)

    def text(self, text: str, style: str = "") -> Text:
        """Returns slipstream's own words with a style. White space is kept."""
        return styled(self._encodable(text), style)

    def clip(self, text: str, width: int) -> str:
        """Cleans the text and cuts it to `width` cells, with a mark at the cut."""
        text = self.clean(text)
        if cell_len(text) <= width:
            return text
        mark = "…" if self.has_unicode else "..."
        while text and cell_len(text) + len(mark) > width:
            text = text[:-1]
        return text.rstrip() + mark

    def tail(self, text: str, width: int) -> str:
        """Cleans the text and cuts it at its front, because the end of a long path tells most."""
        text = self.clean(text)
        mark = "…" if self.has_unicode else "..."
        while cell_len(text) > width:
            text = mark + text.removeprefix(mark)[1:]
        return text

    def fold(self, parts: Iterable[str], width: int) -> list[str]:
        """Joins the parts with dots. Lines break only between parts."""
        lines: list[str] = []
        for part in filter(None, map(self.clean, parts)):
            if lines and cell_len(lines[-1]) + cell_len(part) + 3 <= width:
                lines[-1] += self.clean(" · ").center(3) + part
            else:
                lines.append(self.clip(part, width))
        return lines

    def wrap(self, text: str, indent: int, style: str = "") -> list[Text]:
        """Wraps the text at the console's width. Every line is indented."""
        lines = styled(self.clean(text), style).wrap(self.console, max(self.width - indent - 1, 20))
        for line in lines:
            line.rstrip()
        return [Text(" " * indent) + line for line in lines]


def style_of(phase: str) -> str:
    return PHASE_STYLES.get(phase) or KIND_STYLES.get(phase, "bright_black")


def styled(text: str, style: str) -> Text:
    """Returns text with this style. The style does not apply to text that is appended later, unlike the style of
    `Text(..., style=...)`."""
    return Text.assemble((text, style))
