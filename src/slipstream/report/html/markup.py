"""Markup made of elements, and the one place where text of the user's script becomes safe to stand in a page."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from markupsafe import Markup, escape

_KEPT = "\n\t"


def clean(text: str) -> str:
    """Printable, and what it looks like: no control characters, none that turn the direction of reading, no halves of
    a pair that UTF-8 cannot hold."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in _KEPT or unicodedata.category(char)[0] != "C" else "?" for char in text)


def text(value: object) -> Markup:
    """Markup stays what it is; all else is cleaned and escaped."""
    return value if isinstance(value, Markup) else escape(clean(str(value)))


def element(name: str, *children: object, **attributes: object) -> Markup:
    """`<name attributes>children</name>`. An underscore in an attribute's name stands for a hyphen, one at its end for
    nothing (`class_`); None leaves it out. Numbers have two decimals at most."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    return Markup("").join(text(part) for part in parts)


def percent(share: float) -> str:
    """A place or a length in its parent: 0.25 is 25%."""
    return f"{_short(100.0 * share)}%"


def _short(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
