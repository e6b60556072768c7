"""The peak with each remedy, and the memory of other batch sizes. Values that were not observed are computed from the
observed steps."""

from __future__ import annotations

from markupsafe import Markup

from slipstream.memory.forecast import Forecast, forecast
from slipstream.memory.remedies import list_remedies
from slipstream.numbers import in_bytes, in_percent, plural
from slipstream.records import Footprint, Session
from slipstream.report.html import svg
from slipstream.report.html.chart import Chart, Key, plain_table
from slipstream.report.html.svg import join
from slipstream.report.text.memory import about, batch_sizes, beyond_all, doubt, samples_of

IDENT = "remedies"
TITLE = "What each remedy would free"
BATCH_IDENT = "batches"
BATCH_TITLE = "What other batches need"


def remedy_charts(session: Session) -> list[Chart]:
    if not session.footprints:
        return []
    made = forecast(session.footprints)
    charts = [_remedies(session.footprints[0]), _batches(made, samples_of(session)) if made is not None else None]
    return [chart for chart in charts if chart is not None]


def _remedies(footprint: Footprint) -> Chart | None:
    remedies, peak = list_remedies(footprint), footprint.peak_bytes
    if not remedies or not peak:
        return None
    drawn = [svg.row("as it is", in_bytes(peak), svg.BAR, [_bar(peak, 0, peak)], "strong")]
    for remedy in remedies:
        left = peak - remedy.freed_bytes
        value = f"{in_bytes(left)}, {in_percent(remedy.freed_bytes / peak)} less"
        drawn.append(
            svg.row(remedy.name, value, svg.BAR, [_bar(left, remedy.freed_bytes, peak)], "code", about(remedy))
        )
    sentence = ", ".join(f"{each.name} {in_bytes(each.freed_bytes)}" for each in remedies)
    rows = [
        [r.name, in_bytes(r.freed_bytes), in_bytes(peak - r.freed_bytes), r.numerics, r.what, r.price] for r in remedies
    ]
    return Chart(
        IDENT,
        TITLE,
        "Computed from the observed step and not measured, for each remedy alone. If another phase becomes the peak,"
        " the new peak is that of the other phase.",
        f"Freed of {in_bytes(peak)}: {sentence}.",
        svg.rows(IDENT, TITLE, f"Freed of {in_bytes(peak)}: {sentence}.", drawn),
        [Key("rung-total", "the new peak"), Key("freed", "freed")],
        plain_table(TITLE, ("remedy", "frees", "peak then", "numerics", "what", "price"), "lrrlll", rows),
    )


def _bar(left: int, freed: int, peak: int) -> Markup:
    shapes = [svg.backend(), svg.block(0.0, left / peak, svg.BAR, "rung-total", f"{in_bytes(left)} stay")]
    if freed:
        shapes.append(svg.block(left / peak, freed / peak, svg.BAR, "freed", f"{in_bytes(freed)} freed"))
    return join(shapes)


def _batches(made: Forecast, num_samples: int | None) -> Chart:
    sizes = batch_sizes(made)
    peaks = {size: made.observed.get(size, made.peak_bytes(size)) for size in sizes}
    scale = max(1, *peaks.values())
    drawn, rows = [], []
    for size, peak in peaks.items():
        is_seen = size in made.observed
        word = "observed" if is_seen else "predicted"
        shape = svg.block(
            0.0, peak / scale, svg.THIN, "mark-kept" if is_seen else "predicted", f"{word} {in_bytes(peak)}"
        )
        drawn.append(
            svg.row(plural(size, "sample"), f"{in_bytes(peak)}, {word}", svg.THIN, [svg.backend(svg.THIN), shape])
        )
        rows.append([f"{size:,}", in_bytes(peak), word])
    sentence = _sentence(made, num_samples)
    return Chart(
        BATCH_IDENT,
        BATCH_TITLE,
        f"{sentence} Each phase has a fixed part and a part per sample. Both were computed from the observed sizes.",
        sentence,
        svg.rows(BATCH_IDENT, BATCH_TITLE, sentence, drawn),
        [],
        plain_table(BATCH_TITLE, ("batch", "peak", "how"), "rrl", rows),
    )


def _sentence(made: Forecast, num_samples: int | None) -> str:
    own = max(made.observed)
    each = made.peak_bytes(2 * own) - made.peak_bytes(own)
    largest = made.largest_batch()
    more = beyond_all(largest, num_samples)
    fits = f" The largest batch that fits in {in_bytes(made.capacity_bytes)} is {largest:,}{more}." if largest else ""
    return f"One more sample takes {in_bytes(each / own)}{doubt(made)}.{fits}"
