"""Rows of text in aligned columns, without lines between them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

Cell = Text | str


def rows(cells: Sequence[Sequence[Cell]], align: str, indent: int = 2, gap: int = 2) -> list[Text]:
    """`align` has one letter per column: l or r. The last column is not padded, so that no line ends in blanks."""
    texts = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in cells]
    widths = [max((row[index].cell_len for row in texts), default=0) for index in range(len(align))]
    return [_row(row, widths, align, indent, gap) for row in texts]


def _row(row: list[Text], widths: list[int], align: str, indent: int, gap: int) -> Text:
    line = Text(" " * indent)
    for index, (cell, width, side) in enumerate(zip(row, widths, align, strict=True)):
        blanks = " " * (width - cell.cell_len)
        line.append(" " * gap if index and width else "")
        line.append(blanks if side == "r" else "")
        line.append_text(cell)
        line.append(blanks if side == "l" and index < len(row) - 1 else "")
    line.rstrip()
    return line
