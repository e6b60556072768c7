"""The speed of everything that was timed, relative to the base, as marks and 95% intervals on one logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from slipstream.numbers import as_ratio
from slipstream.records import Session, Speed, Tuning
from slipstream.records.race import FARTHEST
from slipstream.report.html import svg
from slipstream.report.html.chart import Chart, Key
from slipstream.report.html.svg import Scale, element, percent
from slipstream.report.text.tune import NOISE, gain, relative, single_name, tried, worths

IDENT = "contenders"
TITLE = "What was tried"
HEIGHT = 16.0
UP = 39.0  # distance to the shapes of the row above, so that the marks form continuous lines
_MARKS = (0.05, 0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
_WORDS = {"noise": "the control"}
_EDGE = 1.15  # the scale ends at the outermost mark or interval times this factor
_ROOM = 0.12  # share of the width that a label needs
_FAR = 1.6  # an interval is drawn at most up to the outermost mark times this factor


class ChartEntry(msgspec.Struct, frozen=True):
    name: str
    decision: str  # noise, kept, rejected, unsure, failed
    speed: Speed
    proof: str = ""  # the proof of a technique that was kept without an interval of its own


def verdict_chart(session: Session) -> Chart | None:
    tuning = session.tuning
    entries = entries_of(tuning) if tuning else []
    if len(entries) < 2:
        return None
    scale = _scale(entries)
    drawn = [_row(entry, scale, -UP if number else 0.0) for number, entry in enumerate(entries)]
    return Chart(
        IDENT,
        TITLE,
        "Marks to the right of 1.00x are faster. The line is the 95% interval against the unchanged script, and may "
        "continue beyond the edge. A mark without a line is an estimate from a few rounds. A name with + was raced on "
        "top of the recipe so far, and its mark is relative to that recipe.",
        gain(session),
        svg.rows(IDENT, TITLE, gain(session), [*drawn, svg.ruler(_named(scale))]),
        [Key(f"mark-{word}", _WORDS.get(word, word)) for word in dict.fromkeys(entry.decision for entry in entries)],
    )


def entries_of(tuning: Tuning) -> list[ChartEntry]:
    """Returns the control, then the single techniques in the order of the races, then the whole recipe."""
    entries = [ChartEntry(NOISE, "noise", tuning.noise)] if tuning.noise else []
    proofs = dict(worths(tuning))
    for each in tried(tuning):
        if each.own_ratio is not None:
            own = Speed(each.own_ratio, 1.0 / FARTHEST, FARTHEST)
            entries.append(ChartEntry(single_name(each), each.decision, own))
        elif each.speed is not None:
            is_lead = each.decision == "kept" and not each.speed.is_bounded
            proof = proofs.get(str(each.choice), "") if is_lead else ""
            entries.append(ChartEntry(single_name(each), each.decision, each.speed, proof))
    if tuning.total is not None and tuning.recipe.choices:
        entries.append(ChartEntry("all that was kept", "kept", tuning.total))
    return entries


def _scale(entries: Sequence[ChartEntry]) -> Scale:
    """Returns a scale of logarithms that includes all ratios. Intervals may extend beyond the scale."""
    ratios = [entry.speed.ratio for entry in entries] + [1.0]
    ends = [bound for entry in entries if entry.speed.is_bounded for bound in (entry.speed.low, entry.speed.high)]
    low, high = min(ratios), max(ratios)
    low = max(min([low, *ends]), low / _FAR) / _EDGE
    high = min(max([high, *ends]), high * _FAR) * _EDGE
    return Scale(math.log(low), math.log(high))


def _marks(scale: Scale) -> list[tuple[float, float]]:
    """Returns the round ratios in the visible range, and their positions."""
    return [(mark, scale.share(math.log(mark))) for mark in _MARKS if scale.low < math.log(mark) < scale.high]


def _named(scale: Scale) -> list[tuple[float, str]]:
    """Returns the ratios that have space for their labels. 1.00x is always one of them."""
    one = scale.share(0.0)
    found = [(one, as_ratio(1.0))]
    for mark, share in _marks(scale):
        if all(abs(share - taken) > _ROOM for taken, _ in found):
            found.append((share, as_ratio(mark)))
    return sorted(found)


def _row(entry: ChartEntry, scale: Scale, top: float) -> Markup:
    speed, middle = entry.speed, HEIGHT / 2
    tip = f"{entry.name}: {relative(speed)}, {_WORDS.get(entry.decision, entry.decision)}"
    low, at, high = (percent(scale.share(math.log(value))) for value in (speed.low, speed.ratio, speed.high))
    shapes = [
        element("line", class_="axis" if mark == 1.0 else "grid", x1=percent(x), x2=percent(x), y1=top, y2=HEIGHT)
        for mark, x in _marks(scale)
    ]
    if speed.is_bounded:
        shapes.append(element("line", class_=f"span span-{entry.decision}", x1=low, x2=high, y1=middle, y2=middle))
    shapes.append(element("circle", class_=f"mark-{entry.decision}", cx=at, cy=middle, r="5.5", data_tip=tip))
    style = "" if entry.decision == "kept" else "dim"
    return svg.row(entry.name, relative(speed), HEIGHT, shapes, style, entry.proof)
