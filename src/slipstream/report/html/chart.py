"""The data of the charts, tables and lists of the page. The template draws them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from markupsafe import Markup


class Cell(msgspec.Struct, frozen=True):
    """A cell of a table. `order` is the sort key. None: the text is the sort key. `style` has class names."""

    text: str | Markup
    order: float | None = None
    style: str = ""


class Table(msgspec.Struct, frozen=True):
    """A table with a caption and headings. `align` has one letter for each column: l or r."""

    caption: str
    headings: list[str]
    align: str
    rows: list[list[Cell]]
    is_sortable: bool = True
    row_styles: list[str] = []


class Terms(msgspec.Struct, frozen=True):
    """A list of names, each with a sentence."""

    title: str
    entries: list[tuple[str, str]]
    is_folded: bool = False


class Key(msgspec.Struct, frozen=True):
    """An entry of a legend: a class that gives the colour, a name, and a number."""

    style: str
    name: str
    value: str = ""


class Chart(msgspec.Struct, frozen=True):
    """A picture with its texts. `description` is the sentence for screen readers. `table` has the numbers."""

    ident: str
    title: str
    caption: str
    description: str
    picture: Markup
    keys: list[Key] = []
    table: Table | None = None


def plain_table(caption: str, headings: Sequence[str], align: str, rows: Sequence[Sequence[str]]) -> Table:
    """Returns a table of plain text, for the numbers behind a chart."""
    return Table(caption, list(headings), align, [[Cell(text) for text in row] for row in rows], is_sortable=False)
