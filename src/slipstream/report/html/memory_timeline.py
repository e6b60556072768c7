"""The live bytes of one observed step over time, as one stacked area for each kind, and the peak of each phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from markupsafe import Markup

from slipstream.numbers import in_bytes, in_ms, in_percent
from slipstream.records import KINDS, Footprint, Moment, Session
from slipstream.report.html import svg
from slipstream.report.html.chart import Chart, Key, plain_table
from slipstream.report.html.svg import (
    TOP,
    WIDE,
    Frame,
    Point,
    Scale,
    anchor_of,
    axes,
    element,
    percent,
    picture,
    ribbon,
    stretched,
)
from slipstream.report.text.memory import allocator_sentence, kind_words, reached

IDENT = "live-bytes"
TITLE = "Live bytes over the step, by kind"
PEAKS_IDENT = "phase-peaks"
PEAKS_TITLE = "The peak of each phase"
HEIGHT = 300.0
_HEADROOM = 1.16  # height of the axis relative to the peak, with space for the label of the peak
_FITS = 0.075  # share of the width that has space for a phase's name
_FITS_PHONE = 0.2
_LEAST = 0.02
KIND_NAMES = tuple(kind_words(kind) for kind in KINDS)


class Span(msgspec.Struct, frozen=True):
    """Consecutive moments of one phase."""

    phase: str
    start_ms: float
    end_ms: float


def live_chart(session: Session) -> Chart | None:
    footprint = session.footprints[0] if session.footprints else None
    if footprint is None or len(footprint.moments) < 2 or footprint.step_ms <= 0:
        return None
    frame = Frame(Scale(0.0, footprint.step_ms), Scale(0.0, _HEADROOM * max(1, footprint.peak_bytes)), HEIGHT)
    spans = spans_of(footprint)
    layer = stretched(frame, *_grounds(spans, frame), *_areas(footprint, frame))
    sentence = f"The peak, {in_bytes(footprint.peak_bytes)}, comes {reached(footprint, session.cwd)}."
    drawn = (axes(frame, in_ms, in_bytes), layer, *_names(spans, frame), *_peak(footprint, frame))
    return Chart(
        IDENT,
        TITLE,
        _caption(footprint),
        sentence,
        picture(IDENT, TITLE, sentence, frame.full_height, *drawn, *_hits(footprint, frame), style="with-axis"),
        kind_keys(footprint),
        plain_table(TITLE, ("at", "phase", "alive", *KIND_NAMES), "llr" + "r" * 7, _rows(footprint)),
    )


def _caption(footprint: Footprint) -> str:
    parts = ["The legend has the bytes at the peak. Each point is the highest value of its interval."]
    parts.append("Observation makes the step slower, so these times are longer than usual.")
    if kept := allocator_sentence(footprint):
        parts.append(f"The caching allocator: {kept}.")
    return " ".join(parts)


def spans_of(footprint: Footprint) -> list[Span]:
    """Returns the phases of the step. A phase lasts until the next phase allocates. The time between two phases belongs
    to the first of them."""
    spans: list[Span] = []
    for moment in footprint.moments:
        if spans and moment.phase in (spans[-1].phase, "other"):
            continue
        if spans:
            spans[-1] = msgspec.structs.replace(spans[-1], end_ms=moment.at_ms)
        spans.append(Span(moment.phase, moment.at_ms if spans else 0.0, footprint.step_ms))
    return spans


def _is_seen(footprint: Footprint, kind: str) -> bool:
    return footprint.kinds.get(kind, 0) > 0 or any(moment.num_bytes[KINDS.index(kind)] for moment in footprint.moments)


def kind_keys(footprint: Footprint) -> list[Key]:
    """Returns the legend of all kinds that are present, with their bytes at the peak."""
    peak = max(1, footprint.peak_bytes)
    listed = [(kind, footprint.kinds.get(kind, 0)) for kind in KINDS if _is_seen(footprint, kind)]
    return [
        Key(f"kind-{kind}", kind_words(kind), f"{in_bytes(size)} {in_percent(size / peak)}") for kind, size in listed
    ]


def name_keys(held: Iterable[Mapping[str, int]]) -> list[Key]:
    """Returns the legend of the kinds that any of `held` has, without numbers."""
    present = {kind for kinds in held for kind, size in kinds.items() if size > 0}
    return [Key(f"kind-{kind}", kind_words(kind)) for kind in KINDS if kind in present]


def _areas(footprint: Footprint, frame: Frame) -> Iterator[Markup]:
    """Yields the areas from the bottom up. Kinds that stay alive from step to step are at the bottom, so that the areas
    above have a level base.
    """
    lower: list[Point] = _outline(footprint, 0)
    for number, kind in enumerate(KINDS, 1):
        upper = _outline(footprint, number)
        if _is_seen(footprint, kind):
            yield ribbon(frame, lower, upper, f"area kind-{kind}")
        lower = upper


def _outline(footprint: Footprint, number: int) -> list[Point]:
    """Returns the sum of the first `number` kinds over time. After the last allocation the sum stays the same."""
    points = [(moment.at_ms, float(sum(moment.num_bytes[:number]))) for moment in footprint.moments]
    return [(0.0, points[0][1]), *points, (footprint.step_ms, points[-1][1])]


def _grounds(spans: Sequence[Span], frame: Frame) -> Iterator[Markup]:
    """Yields a shade behind every second phase, because the colours belong to the kinds."""
    for span in spans[1::2]:
        left, right = (WIDE * frame.left(at) for at in (span.start_ms, span.end_ms))
        yield element("rect", class_="apart", x=left, y=TOP, width=right - left, height=frame.height)


def _names(spans: Sequence[Span], frame: Frame) -> Iterator[Markup]:
    """Yields the names above the phases that have space for a name. The name of a short last phase, usually the
    optimizer, is right-aligned."""
    for span in spans:
        left, right = frame.left(span.start_ms), frame.left(span.end_ms)
        is_wide = right - left >= _FITS
        if is_wide or (span is spans[-1] and right - left >= _LEAST):
            style = "ground-name" + (" tight" if right - left < _FITS_PHONE else "")
            at, anchor = (percent((left + right) / 2), "middle") if is_wide else ("100%", "end")
            yield element("text", span.phase, class_=style, x=at, y=TOP - 6.0, text_anchor=anchor)


def _peak(footprint: Footprint, frame: Frame) -> list[Markup]:
    share, top = frame.left(footprint.peak_ms), frame.top(footprint.peak_bytes)
    at, anchor = percent(share), "end" if share > 0.8 else anchor_of(share)
    words = f"peak {in_bytes(footprint.peak_bytes)}"
    return [
        element("line", class_="base-line", x1=at, x2=at, y1=top, y2=TOP + frame.height),
        element("circle", class_="mark-peak", cx=at, cy=top, r="4"),
        element("text", words, class_="peak-name", x=at, y=top - 10.0, text_anchor=anchor),
    ]


def _hits(footprint: Footprint, frame: Frame) -> Iterator[Markup]:
    """Yields the hover areas. Each covers the interval of one moment, from top to bottom."""
    moments = footprint.moments
    for number, moment in enumerate(moments):
        start = frame.left(moment.at_ms) if number else 0.0
        end = frame.left(moments[number + 1].at_ms) if number + 1 < len(moments) else 1.0
        width = percent(max(end - start, 0.001))
        tip = _tip(moment)
        yield element("rect", class_="hit", x=percent(start), y=TOP, width=width, height=frame.height, data_tip=tip)


def _tip(moment: Moment) -> str:
    total = sum(moment.num_bytes)
    parts = [
        f"{kind_words(kind)} {in_bytes(size)}"
        for kind, size in zip(KINDS, moment.num_bytes, strict=True)
        if size >= 0.01 * total
    ]
    return f"{in_ms(moment.at_ms)}, {moment.phase}: {in_bytes(total)}; {', '.join(parts)}"


def _rows(footprint: Footprint) -> list[list[str]]:
    return [
        [
            in_ms(moment.at_ms),
            moment.phase,
            in_bytes(sum(moment.num_bytes)),
            *(in_bytes(size) if size else "" for size in moment.num_bytes),
        ]
        for moment in footprint.moments
    ]


def peaks_chart(footprint: Footprint) -> Chart | None:
    """Returns the chart of the peak of each phase."""
    phases = {phase: kinds for phase, kinds in footprint.phases.items() if phase != "other" and sum(kinds.values()) > 0}
    if len(phases) < 2:
        return None
    sums = {phase: sum(kinds.values()) for phase, kinds in phases.items()}
    sentence = ", ".join(f"{phase} {in_bytes(size)}" for phase, size in sums.items()) + "."
    drawn = [
        svg.row(phase, in_bytes(sums[phase]), svg.BAR, [kind_bar(kinds, footprint.peak_bytes)])
        for phase, kinds in phases.items()
    ]
    rows = [
        [phase, in_bytes(sums[phase]), *(in_bytes(size) if (size := kinds.get(kind)) else "" for kind in KINDS)]
        for phase, kinds in phases.items()
    ]
    return Chart(
        PEAKS_IDENT,
        PEAKS_TITLE,
        "A remedy can lower the peak to that of the next highest phase.",
        sentence,
        svg.rows(PEAKS_IDENT, PEAKS_TITLE, sentence, drawn),
        name_keys(phases.values()),
        plain_table(PEAKS_TITLE, ("phase", "alive", *KIND_NAMES), "lr" + "r" * 7, rows),
    )


def kind_bar(kinds: Mapping[str, int], scale_bytes: int, height: float = svg.BAR) -> Markup:
    ordered = {kind: float(kinds.get(kind, 0)) for kind in KINDS}
    return svg.stacked(ordered, float(max(1, scale_bytes)), "kind", height, in_bytes)
