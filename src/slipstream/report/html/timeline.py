"""One typical step over time: the host's phases in order, and below them the activity of the device and of the loader
workers. The chart shows an observed step and not an average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from markupsafe import Markup

from slipstream.diagnose.steps.undisturbed import counted_steps
from slipstream.numbers import in_ms, plural
from slipstream.observe.intervals import PHASE_OF_KIND, Interval, lay_out
from slipstream.records import Event, Session, Step, Summary
from slipstream.report.html import svg
from slipstream.report.html.chart import Chart, plain_table
from slipstream.report.html.svg import element, percent, ticks

IDENT = "timeline"
TITLE = "One typical step, in order"
MOST_PROCESSES = 9
HOST = 34.0  # pixels
OTHERS = 14.0
_FITS = 0.1  # a phase with a larger share of the step has space for its name
_FITS_PHONE = 0.25


class TimelineRow(msgspec.Struct, frozen=True):
    """A row of the timeline. Its pieces are in milliseconds since the start of the step."""

    name: str
    pieces: list[Interval]


def timeline_chart(session: Session, summary: Summary) -> Chart | None:
    step = typical(session, summary)
    processes = processes_of(session, step) if step else []
    if step is None or not processes:
        return None
    length_ms = max(piece.end for process in processes for piece in process.pieces)
    order = ", ".join(
        f"{piece.label} {in_ms(piece.end - piece.start)}" for piece in processes[0].pieces if _is_seen(piece)
    )
    rows = [
        [process.name, piece.label, in_ms(piece.start), in_ms(piece.end - piece.start)]
        for process in processes
        for piece in process.pieces
    ]
    return Chart(
        IDENT,
        TITLE,
        f"Step {step.index:,}, {in_ms(step.step_ms)}. Of all observed steps, its phases are closest to the typical"
        " phases.",
        f"In order: {order}.",
        svg.rows(IDENT, TITLE, f"In order: {order}.", _draw(processes, length_ms)),
        [],
        plain_table("The step in order", ("where", "what", "begins", "takes"), "llrr", rows),
    )


def _is_seen(piece: Interval) -> bool:
    return piece.end - piece.start >= 0.01


def typical(session: Session, summary: Summary) -> Step | None:
    """Returns the counted step whose phases are closest to the phases of the summary, or None. Steps that contain an
    evaluation or begin an epoch are left out.
    """
    whole = [step for step in counted_steps(session) if not step.apart_ms and not step.is_first_of_epoch]

    def distance(step: Step) -> float:
        return sum(abs(step.phases.get(phase, 0.0) - ms) for phase, ms in summary.phases.items())

    return min(whole, key=distance, default=None)


def processes_of(session: Session, step: Step) -> list[TimelineRow]:
    """Returns the rows of the host, the device and the workers, or [] if the session has no events of this step."""
    events = [event for event in session.events if step.start_ns <= event.start_ns < step.end_ns]
    if not any(event.kind == "forward" for event in events):
        return []
    processes = [_host(events, step)]
    if device := _device(events):
        processes.append(device)
    return [*processes, *_workers(session, step)][:MOST_PROCESSES]


def _host(events: Sequence[Event], step: Step) -> TimelineRow:
    intervals = [
        Interval(event.start_ns, event.end_ns, PHASE_OF_KIND[event.kind])
        for event in events
        if event.kind in PHASE_OF_KIND and not event.kept
    ]
    pieces = lay_out(intervals, step.start_ns, step.end_ns, "other")
    return TimelineRow("host", _joined([_since(piece, step.start_ns) for piece in pieces]))


def _joined(pieces: Sequence[Interval]) -> list[Interval]:
    """Joins consecutive pieces of one phase."""
    found: list[Interval] = []
    for piece in pieces:
        if found and found[-1].label == piece.label:
            found[-1] = found[-1]._replace(end=piece.end)
        else:
            found.append(piece)
    return found


def _since(piece: Interval, start_ns: float) -> Interval:
    return Interval((piece.start - start_ns) / 1e6, (piece.end - start_ns) / 1e6, piece.label)


def _device(events: Sequence[Event]) -> TimelineRow | None:
    """Returns the row of the device, on the device's own clock. The row begins with the device's first activity in the
    step."""
    timed = [
        Interval(event.device_start_ms, event.device_end_ms, PHASE_OF_KIND[event.kind])
        for event in events
        if event.device_start_ms is not None and event.device_end_ms is not None and event.kind in PHASE_OF_KIND
    ]
    if not timed:
        return None
    start, end = min(piece.start for piece in timed), max(piece.end for piece in timed)
    pieces = [Interval(p.start - start, p.end - start, p.label) for p in lay_out(timed, start, end, "other")]
    return TimelineRow("device", _joined(pieces))


def _workers(session: Session, step: Step) -> list[TimelineRow]:
    """Returns one row per worker with the batches that the worker built during the step, clipped to the step."""
    found: dict[tuple[int, int], list[Interval]] = {}
    for fetch in session.fetches:
        end_ns = fetch.start_ns + fetch.wall_ns
        if end_ns > step.start_ns and fetch.start_ns < step.end_ns:
            piece = Interval(max(fetch.start_ns, step.start_ns), min(end_ns, step.end_ns), "input")
            found.setdefault((fetch.loader, fetch.worker), []).append(_since(piece, step.start_ns))
    has_workers = any(loader.num_workers for loader in session.loaders)
    return [TimelineRow(f"worker {worker}", pieces) for (_, worker), pieces in sorted(found.items()) if has_workers]


def _draw(processes: Sequence[TimelineRow], length_ms: float) -> Iterator[Markup]:
    for process in processes:
        height = HOST if process.name == "host" else OTHERS
        pieces = [shape for piece in process.pieces for shape in _piece(piece, height, length_ms)]
        yield svg.row(process.name, _busy(process), height, [svg.backend(height), *pieces])
    yield svg.ruler([(value / length_ms, in_ms(value) if value else "0") for value in ticks(0.0, length_ms, 5)])


def _piece(piece: Interval, height: float, length_ms: float) -> list[Markup]:
    share = (piece.end - piece.start) / length_ms
    tip = f"{piece.label} {in_ms(piece.end - piece.start)}, from {in_ms(piece.start)} on"
    parts = [svg.block(piece.start / length_ms, share, height, f"phase-{piece.label}", tip)]
    if height == HOST and share > _FITS:
        middle = percent((piece.start + piece.end) / 2 / length_ms)
        style = f"inside on-{piece.label}" + (" tight" if share < _FITS_PHONE else "")
        parts.append(element("text", piece.label, class_=style, x=middle, y=HOST / 2 + 4.5, text_anchor="middle"))
    return parts


def _busy(process: TimelineRow) -> str:
    if process.name == "host":
        return ""
    busy_ms = sum(piece.end - piece.start for piece in process.pieces if piece.label != "other")
    batches = f", {plural(len(process.pieces), 'batch', 'es')}" if process.name.startswith("worker") else ""
    return f"busy {in_ms(busy_ms)}{batches}"
