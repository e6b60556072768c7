"""What owns the bytes that are alive at the peak: charts by module and by the user's line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from slipstream.numbers import in_bytes, in_percent
from slipstream.records import KINDS, Footprint, Session
from slipstream.report.html import svg
from slipstream.report.html.chart import Chart, plain_table
from slipstream.report.html.memory_timeline import KIND_NAMES, kind_bar, name_keys
from slipstream.report.text.memory import MemoryOwner, line_holders, module_holders

MOST_ROWS = 12
THIN = 14.0


def holder_charts(session: Session) -> list[Chart]:
    if not session.footprints:
        return []
    footprint = session.footprints[0]
    modules, lines = module_holders(footprint), line_holders(footprint, session.cwd)
    listed = [
        _chart("peak-modules", "By module", modules, footprint, "Repeated modules share one row, which has their sum."),
        _chart(
            "peak-lines",
            "By line",
            lines,
            footprint,
            "What backward allocates counts for the line of its forward pass.",
        ),
    ]
    return [chart for chart in listed if chart is not None]


def _chart(ident: str, title: str, holders: Sequence[MemoryOwner], footprint: Footprint, caption: str) -> Chart | None:
    if not holders:
        return None
    shown, rows = holders[:MOST_ROWS], [_row(holder) for holder in holders]
    sentence = "; ".join(f"{holder.name} {_value(holder, footprint)}" for holder in shown[:3]) + "."
    left_out = f" The first {MOST_ROWS} of {len(holders)} are shown." if len(holders) > MOST_ROWS else ""
    return Chart(
        ident,
        title,
        f"{caption} The longest bar fills the width.{left_out}",
        sentence,
        svg.rows(ident, title, sentence, _draw(shown, footprint)),
        name_keys(holder.kinds for holder in shown),
        plain_table(title, ("owner", "what", "alive", *KIND_NAMES), "llr" + "r" * 7, rows),
    )


def _draw(holders: Sequence[MemoryOwner], footprint: Footprint) -> Iterator[Markup]:
    scale = max(holder.kinds.total() for holder in holders)
    for name, about, kinds in holders:
        shape = kind_bar(kinds, scale, THIN)
        yield svg.row(name, _value(MemoryOwner(name, about, kinds), footprint), THIN, [shape], "code", about)


def _value(holder: MemoryOwner, footprint: Footprint) -> str:
    total = holder.kinds.total()
    return f"{in_bytes(total)}  {in_percent(total / max(1, footprint.peak_bytes))}"


def _row(holder: MemoryOwner) -> list[str]:
    sizes = [in_bytes(size) if (size := holder.kinds[kind]) else "" for kind in KINDS]
    return [holder.name, holder.about, in_bytes(holder.kinds.total()), *sizes]
