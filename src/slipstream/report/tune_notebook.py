"""A tuning as a small piece of HTML for a notebook: the sentence, the table, the reasons."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from slipstream.records import Session
from slipstream.report.notebook import STYLE
from slipstream.report.tune_table import HEADINGS, Row, table_rows
from slipstream.report.tune_words import caveats, costs, gain, not_applicable, raced, reasons, worths
from slipstream.report.verdict import script_of

_STYLE = """
.slipstream table{border-collapse:collapse;margin:.4em 0}
.slipstream th,.slipstream td{padding:2px 10px;text-align:left;white-space:nowrap;background:none}
.slipstream th{opacity:.65;font-weight:400}.slipstream td.number,.slipstream th.number{text-align:right}
.slipstream .kept{color:#2e9a45}.slipstream .failed{color:#c0392b}.slipstream .unsure{color:#b7860b}
"""
_NUMBERS = {"batch", "memory", "step ms", "samples/s"}


def tuning_to_html(session: Session) -> str:
    tuning = session.tuning
    assert tuning is not None
    rows = table_rows(tuning)
    columns = [index for index in range(len(HEADINGS)) if any(row.cells[index] for row in rows)]
    heads = "".join(f"<th{_class(index)}>{HEADINGS[index]}</th>" for index in columns)
    parts = [
        f"<style>{STYLE}{_STYLE}</style>",
        f'<div class="dim">slipstream tune · {escape(script_of(session))} · {escape(raced(session))}</div>',
        f'<div class="verdict">{escape(gain(session))}</div>',
        *(f"<div>{escape(sentence)}</div>" for sentence in caveats(session)),
        f"<table><tr>{heads}</tr>{''.join(_row(row, columns) for row in rows)}</table>",
        *_listed([*worths(tuning), *costs(tuning), *reasons(tuning)]),
        *(f'<div class="dim">not applicable: {escape(line)}</div>' for line in not_applicable(tuning)),
        *(f'<div class="dim">{escape(note)}</div>' for note in session.notes),
    ]
    return f'<div class="slipstream">{"".join(parts)}</div>'


def _row(row: Row, columns: list[int]) -> str:
    cells = "".join(f"<td{_class(index)}>{escape(row.cells[index])}</td>" for index in columns)
    return f'<tr class="{escape(row.verdict.replace(" ", "_"))}">{cells}</tr>'


def _class(column: int) -> str:
    return ' class="number"' if HEADINGS[column] in _NUMBERS else ""


def _listed(entries: Iterable[tuple[str, str]]) -> Iterable[str]:
    return (f'<div><code>{escape(name)}</code> <span class="dim">{escape(why)}</span></div>' for name, why in entries)
