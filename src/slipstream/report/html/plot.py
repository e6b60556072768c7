"""The parts of a plot: scales, ticks, a frame with a grid, lines and points. Places along x are shares of the width, so
that a plot fills any screen while its text keeps its size; heights are pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from slipstream.report.html.markup import element, join, percent

WIDE = 1000.0  # units across a stretched layer
TOP = 8.0  # room above the highest grid line, for half a letter
BOTTOM = 22.0  # for the labels of x
Point = tuple[float, float]


class Scale(NamedTuple):
    """From a value to its share of the way from low to high, within it."""

    low: float
    high: float

    def share(self, value: float) -> float:
        span = self.high - self.low
        return min(max((value - self.low) / span, 0.0), 1.0) if span > 0 else 0.0


class Frame(NamedTuple):
    """The area between the axes."""

    x: Scale
    y: Scale
    height: float  # of the area; labels come on top

    def left(self, value: float) -> float:
        return self.x.share(value)

    def top(self, value: float) -> float:
        return TOP + (1.0 - self.y.share(value)) * self.height

    @property
    def full_height(self) -> float:
        return self.height + TOP + BOTTOM


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers between low and high, about so many."""
    if not high > low:
        return [low]
    raw = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def ticks_of_time(seconds: float) -> list[float]:
    """From 0 on; of whole minutes where there are several."""
    return [60.0 * minutes for minutes in ticks(0.0, seconds / 60.0, 5)] if seconds > 150 else ticks(0.0, seconds, 5)


def roof(values: Sequence[float], least: float = 0.0) -> float:
    """Where the axis ends: a little above all but the wildest fiftieth, which would flatten the rest."""
    if not values:
        return max(least, 1.0)
    ordered = sorted(values)
    usual = ordered[min(len(ordered) - 1, int(0.98 * len(ordered)))]
    calm = 2.5 * ordered[len(ordered) // 2]
    top = ordered[-1] if ordered[-1] <= calm else max(min(usual, ordered[-1]), calm)
    return max(top * 1.08, least) or 1.0


def axes(frame: Frame, say_x: Callable[[float], str], say_y: Callable[[float], str], num_x: int = 6) -> Markup:
    """Grid lines with their values on the left, ticks of x below."""
    parts = []
    for value in ticks(frame.y.low, frame.y.high):
        y = frame.top(value)
        parts.append(element("line", class_="grid", x1="0", x2="100%", y1=y, y2=y))
        parts.append(element("text", say_y(value), class_="tick", x="-8", y=y + 4.0, text_anchor="end"))
    for value in ticks(frame.x.low, frame.x.high, num_x):
        share = frame.left(value)
        below, anchor = frame.height + TOP + 17.0, anchor_of(share)
        parts.append(element("text", say_x(value), class_="tick", x=percent(share), y=below, text_anchor=anchor))
    return join(parts)


def anchor_of(share: float) -> str:
    """Which end of a text stands at its place: near an edge it must not leave the picture."""
    return "start" if share < 0.03 else "end" if share > 0.95 else "middle"


def stretched(frame: Frame, *parts: Markup) -> Markup:
    """A layer that is pulled to the width of the page; strokes in it keep their thickness."""
    box = f"0 0 {WIDE:g} {frame.full_height:g}"
    return element(
        "svg",
        *parts,
        class_="stretched",
        x="0",
        y="0",
        width="100%",
        height=frame.full_height,
        viewBox=box,
        preserveAspectRatio="none",
    )


def line(frame: Frame, points: Sequence[Point], style: str) -> Markup:
    return element("path", class_=f"line {style}", d=_path(frame, points)) if len(points) > 1 else Markup("")


def ribbon(frame: Frame, lower: Sequence[Point], upper: Sequence[Point], style: str) -> Markup:
    """The area between two lines."""
    return element("path", class_=style, d=_path(frame, [*upper, *reversed(lower)]) + "z") if lower else Markup("")


def dots(frame: Frame, points: Sequence[Point], style: str) -> Markup:
    """Lines without length, whose round ends a stretched layer leaves round."""
    return element("path", class_=f"dots {style}", d="".join(f"M{_at(frame, point)}h0" for point in points))


def _path(frame: Frame, points: Sequence[Point]) -> str:
    return "M" + "L".join(_at(frame, point) for point in points)


def _at(frame: Frame, point: Point) -> str:
    return f"{WIDE * frame.left(point[0]):.1f} {frame.top(point[1]):.1f}"


def picture(ident: str, title: str, description: str, height: float, *parts: Markup, style: str = "") -> Markup:
    """An image to those who listen, with a name and a sentence."""
    return element(
        "svg",
        element("title", title, id=f"{ident}-title"),
        element("desc", description, id=f"{ident}-description"),
        *parts,
        class_=f"chart {style}".rstrip(),
        role="img",
        aria_labelledby=f"{ident}-title {ident}-description",
        width="100%",
        height=height,
    )


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Consecutive points averaged, so that at most so many remain."""
    size = math.ceil(len(points) / most) if points else 1
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
