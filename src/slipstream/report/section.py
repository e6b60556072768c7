"""A section of the report: a bold word in the margin, and what stands beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from slipstream.report.ink import Ink, styled

MARGIN = 10


def heading(word: str, rest: str, ink: Ink) -> Text:
    return styled(f" {word:<{MARGIN - 1}}", "bold") + ink.text(rest, "dim")


def folded(word: str, parts: Iterable[str], ink: Ink) -> Iterator[Text]:
    """A heading and its parts, on as many lines as they need."""
    for line in ink.fold(parts, ink.width - MARGIN - 1):
        yield heading(word, line, ink)
        word = ""
