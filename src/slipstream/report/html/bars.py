"""Rows of horizontal bars: a name and a value above, shapes below on a scale that all rows share. Names are text of the
page, not of a picture, so that long ones fold on a narrow screen; lengths are shares of the width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from markupsafe import Markup

from slipstream.report.html.markup import element, join, percent
from slipstream.report.html.plot import anchor_of
from slipstream.report.quantity import in_ms, in_percent

BAR = 22.0
THIN = 8.0
Say = Callable[[float], str]


def row(name: str, value: str, height: float, shapes: Iterable[Markup], style: str = "", note: str = "") -> Markup:
    """Without a name the shapes stand alone. A note stands between name and value, on a phone below them."""
    words = [element("span", name, class_="name"), *([element("span", note, class_="note")] if note else [])]
    label = element("div", *words, element("span", value, class_="value"), class_="label")
    drawn = element("svg", *shapes, width="100%", height=height, aria_hidden="true", focusable="false")
    return element("div", *([label] if name else []), drawn, class_=f"row {style}".rstrip())


def ruler(marks: Sequence[tuple[float, str]]) -> Markup:
    """Values below all rows, each at its share of the width."""
    texts = [
        element("text", name, class_="tick", x=percent(share), y=12.0, text_anchor=anchor_of(share))
        for share, name in marks
    ]
    return element("svg", *texts, class_="ruler", width="100%", height=16.0, aria_hidden="true", focusable="false")


def rows(ident: str, title: str, description: str, parts: Iterable[Markup]) -> Markup:
    """An image to those who listen, with a name and a sentence."""
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


def track(height: float = BAR) -> Markup:
    return element("rect", class_="track", x="0", y="0", width="100%", height=height, rx="3")


def stacked(
    parts: Mapping[str, float], scale: float, prefix: str = "phase", height: float = BAR, say: Say = in_ms
) -> Markup:
    """Parts end to end, coloured by their names."""
    total = sum(parts.values()) or 1.0
    at, drawn = 0.0, [track(height)]
    for name, value in parts.items():
        if value > 0:
            tip = f"{name.replace('_', ' ')} {say(value)}, {in_percent(value / total)}"
            drawn.append(block(at / scale, value / scale, height, f"{prefix}-{name}", tip))
            at += value
    return join(drawn)


def block(start: float, share: float, height: float, style: str, tip: str) -> Markup:
    """Never so thin that it cannot be seen."""
    width = percent(max(share, 0.0015))
    return element("rect", class_=style, x=percent(start), y="0", width=width, height=height, data_tip=tip)
