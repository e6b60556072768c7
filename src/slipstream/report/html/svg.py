"""SVG and HTML building blocks: escaping of text, rows of horizontal bars, and the parts of a plot.

Rows of bars have a name and a value above and shapes below. All rows share one scale. Names are text of the page and
not of a picture, so that a long name wraps on a narrow screen. Positions along x are shares of the width, so that a
plot fills any screen while its text keeps its size. Heights are pixels. In this module only `text` escapes text of the
user's script.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from slipstream.numbers import in_ms, in_percent

BAR = 22.0
THIN = 8.0
Say = Callable[[float], str]


def row(name: str, value: str, height: float, shapes: Iterable[Markup], style: str = "", note: str = "") -> Markup:
    """Returns a row. Without a name, the row has only shapes. A note stands between name and value, or on a phone below
    the two."""
    words = [element("span", name, class_="name"), *([element("span", note, class_="note")] if note else [])]
    label = element("div", *words, element("span", value, class_="value"), class_="label")
    drawn = element("svg", *shapes, width="100%", height=height, aria_hidden="true", focusable="false")
    return element("div", *([label] if name else []), drawn, class_=f"row {style}".rstrip())


def ruler(marks: Sequence[tuple[float, str]]) -> Markup:
    """Returns the values below all rows, each at its share of the width."""
    texts = [
        element("text", name, class_="tick", x=percent(share), y=12.0, text_anchor=anchor_of(share))
        for share, name in marks
    ]
    return element("svg", *texts, class_="ruler", width="100%", height=16.0, aria_hidden="true", focusable="false")


def rows(ident: str, title: str, description: str, parts: Iterable[Markup]) -> Markup:
    """Returns the rows as one image for screen readers, with a name and a sentence."""
    return element(
        "div",
        element("span", title, id=f"{ident}-title", hidden="hidden"),
        element("span", description, id=f"{ident}-description", hidden="hidden"),
        *parts,
        class_="rows",
        role="img",
        aria_labelledby=f"{ident}-title",
        aria_describedby=f"{ident}-description",
    )


def backend(height: float = BAR) -> Markup:
    return element("rect", class_="track", x="0", y="0", width="100%", height=height, rx="3")


def stacked(
    parts: Mapping[str, float], scale: float, prefix: str = "phase", height: float = BAR, say: Say = in_ms
) -> Markup:
    """Returns a bar of all parts. The name of a part gives its colour."""
    total = sum(parts.values()) or 1.0
    at, drawn = 0.0, [backend(height)]
    for name, value in parts.items():
        if value > 0:
            tip = f"{name.replace('_', ' ')} {say(value)}, {in_percent(value / total)}"
            drawn.append(block(at / scale, value / scale, height, f"{prefix}-{name}", tip))
            at += value
    return join(drawn)


def block(start: float, share: float, height: float, style: str, tip: str) -> Markup:
    """Returns a block. A minimum width keeps small blocks visible."""
    width = percent(max(share, 0.0015))
    return element("rect", class_=style, x=percent(start), y="0", width=width, height=height, data_tip=tip)


_KEPT = "\n\t"


def clean(text: str) -> str:
    """Returns the text with "?" in place of control characters, characters that change the direction of reading, and
    lone surrogates, which UTF-8 cannot encode.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in _KEPT or unicodedata.category(char)[0] != "C" else "?" for char in text)


def text(value: object) -> Markup:
    """Returns the value as markup. Values that are not markup yet are cleaned and escaped."""
    return value if isinstance(value, Markup) else escape(clean(str(value)))


def element(name: str, *children: object, **attributes: object) -> Markup:
    """Returns `<name attributes>children</name>`.

    An underscore in an attribute's name becomes a hyphen, and an underscore at its end is removed (`class_`). An
    attribute with the value None is left out. Numbers have at most two decimals.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    return Markup("").join(text(part) for part in parts)


def percent(share: float) -> str:
    """Returns a position or a length in the parent element: 25% for 0.25."""
    return f"{_short(100.0 * share)}%"


def _short(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


WIDE = 1000.0  # units across a stretched layer
TOP = 8.0  # space above the highest grid line, for half of a label
BOTTOM = 22.0  # space for the labels of x
Point = tuple[float, float]


class Scale(NamedTuple):
    """Maps a value to its share of the range from low to high. Values outside the range map to 0 or 1."""

    low: float
    high: float

    def share(self, value: float) -> float:
        span = self.high - self.low
        return min(max((value - self.low) / span, 0.0), 1.0) if span > 0 else 0.0


class Frame(NamedTuple):
    """The area between the axes."""

    x: Scale
    y: Scale
    height: float  # the height of the area, without labels

    def left(self, value: float) -> float:
        return self.x.share(value)

    def top(self, value: float) -> float:
        return TOP + (1.0 - self.y.share(value)) * self.height

    @property
    def full_height(self) -> float:
        return self.height + TOP + BOTTOM


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Returns about `wanted` round numbers between low and high."""
    if not high > low:
        return [low]
    raw = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def ticks_of_time(seconds: float) -> list[float]:
    """Returns ticks from 0, in whole minutes if the time is longer than 150 seconds."""
    return [60.0 * minutes for minutes in ticks(0.0, seconds / 60.0, 5)] if seconds > 150 else ticks(0.0, seconds, 5)


def roof(values: Sequence[float], least: float = 0.0) -> float:
    """Returns the upper end of the axis. It is a little above the largest value. If the largest values are far above
    the median, the end is lower, and these values are cut off."""
    if not values:
        return max(least, 1.0)
    ordered = sorted(values)
    usual = ordered[min(len(ordered) - 1, int(0.98 * len(ordered)))]
    calm = 2.5 * ordered[len(ordered) // 2]
    top = ordered[-1] if ordered[-1] <= calm else max(min(usual, ordered[-1]), calm)
    return max(top * 1.08, least) or 1.0


def axes(frame: Frame, say_x: Callable[[float], str], say_y: Callable[[float], str], num_x: int = 6) -> Markup:
    """Returns grid lines with their values on the left, and the ticks of x below."""
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
    """Returns which part of a text is at its position: the start, the middle or the end. Near an edge, the text must
    not leave the picture."""
    return "start" if share < 0.03 else "end" if share > 0.95 else "middle"


def stretched(frame: Frame, *parts: Markup) -> Markup:
    """Returns a layer that is stretched to the width of the page. Its strokes keep their thickness."""
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
    """Returns the area between two lines."""
    return element("path", class_=style, d=_path(frame, [*upper, *reversed(lower)]) + "z") if lower else Markup("")


def dots(frame: Frame, points: Sequence[Point], style: str) -> Markup:
    """Returns dots. They are lines of length zero, because the ends of lines stay round in a stretched layer."""
    return element("path", class_=f"dots {style}", d="".join(f"M{_at(frame, point)}h0" for point in points))


def _path(frame: Frame, points: Sequence[Point]) -> str:
    return "M" + "L".join(_at(frame, point) for point in points)


def _at(frame: Frame, point: Point) -> str:
    return f"{WIDE * frame.left(point[0]):.1f} {frame.top(point[1]):.1f}"


def picture(ident: str, title: str, description: str, height: float, *parts: Markup, style: str = "") -> Markup:
    """Returns a picture with a name and a sentence for screen readers."""
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
    """Returns at most `most` points. Consecutive points are averaged."""
    size = math.ceil(len(points) / most) if points else 1
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
