"""The stages of the input phase and of the phase `other`, with the user's hottest line of each stage."""

from __future__ import annotations

from markupsafe import Markup

from slipstream.numbers import in_ms, in_percent
from slipstream.records import Session, Summary
from slipstream.report.html import svg
from slipstream.report.html.chart import Cell, Chart, Table
from slipstream.report.terminal.stages import basis, first_batch_ms, matters, why_first
from slipstream.report.text.locations import relative
from slipstream.report.text.stages import StageShare, StageTable, input_stages, main_stages

_WORTH_A_BAR = 0.005
HEIGHT = 12.0
TITLES = {"input": "How a batch is built", "other": "What else the script does"}


def stage_charts(session: Session, summary: Summary) -> list[Chart]:
    found = [("input", input_stages(session)), ("other", main_stages(session, "other"))]
    return [
        _chart(table, session, summary) for phase, table in found if table and table.stages and matters(table, summary)
    ]


def _chart(table: StageTable, session: Session, summary: Summary) -> Chart:
    ident, title = f"stages-{table.phase}", TITLES[table.phase]
    shown = [share for share in table.stages if share.share >= _WORTH_A_BAR]
    longest_ms = max(share.ms for share in shown)
    sentence = "; ".join(f"{share.stage} {in_ms(share.ms)}" for share in shown) + "."
    return Chart(
        ident,
        title,
        _caption(table, session, summary),
        sentence,
        svg.rows(ident, title, sentence, [_bar(share, longest_ms, table.phase) for share in shown]),
        [],
        Table(
            f"{title}: lines of your code",
            ["stage", "a step", "share", "hottest line", "of it"],
            "lrrlr",
            [_row(share, session.cwd) for share in shown],
        ),
    )


def _bar(share: StageShare, longest_ms: float, phase: str) -> Markup:
    tip = f"{share.stage}: {in_ms(share.ms)} a step, {in_percent(share.share)}"
    shape = svg.block(0.0, share.ms / longest_ms, HEIGHT, f"phase-{phase}", tip)
    return svg.row(share.stage, f"{in_ms(share.ms)}  {in_percent(share.share)}", HEIGHT, [svg.backend(HEIGHT), shape])


def _caption(table: StageTable, session: Session, summary: Summary) -> str:
    sentence = f"{basis(table, summary.phases[table.phase])}.".replace("..", ".")
    first_ms = first_batch_ms(table, session, summary)
    if first_ms:
        sentence += f" The first batch of an epoch takes {in_ms(first_ms)} more{why_first(session)}."
    return sentence[0].upper() + sentence[1:]


def _row(share: StageShare, cwd: str) -> list[Cell]:
    spent = [Cell(in_ms(share.ms), share.ms), Cell(in_percent(share.share), share.share)]
    if share.line is None:
        return [Cell(share.stage), *spent, Cell("no line of your code", style="dim"), Cell("", 0.0)]
    place = f"{relative(share.line.file, cwd)}:{share.line.line}  {share.line.expression}"
    return [Cell(share.stage), *spent, Cell(place, style="code"), Cell(in_ms(share.line.ms), share.line.ms)]
