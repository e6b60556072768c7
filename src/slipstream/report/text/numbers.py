"""Formats source locations and numbers: times, rates, sizes, ratios. Text only, no colour.

A location is relative to the working directory of the command if it is inside it.
"""

from __future__ import annotations

import math
import posixpath

from slipstream.records import Site, Speed


def relative(file: str, cwd: str) -> str:
    """Uses only the text of the paths, because a session is also read on other machines, where its files do not
    exist.
    """
    if not cwd or not file.startswith("/"):
        return file
    inside = posixpath.relpath(file, cwd)
    return file if inside.startswith("..") else inside


def where(site: Site | None, cwd: str) -> str:
    """`file:line`, or "" for a finding without a line."""
    return f"{relative(site.file, cwd)}:{site.line}" if site else ""


def in_ms(ms: float) -> str:
    """A step or a part of one: at most three digits, in a suitable unit."""
    if ms >= 1000:
        return in_seconds(ms / 1000)
    if ms >= 10:
        return f"{ms:.0f} ms"
    if ms >= 1:
        return f"{ms:.1f} ms"
    if ms >= 0.1:
        return f"{ms:.2f} ms"
    return f"{ms * 1000:.0f} µs" if ms > 0 else "0 ms"


def between_ms(low_ms: float, high_ms: float) -> str:
    """An interval. The unit appears once if both ends share it."""
    low, high = in_ms(low_ms), in_ms(high_ms)
    return f"{low.split()[0] if low.split()[1] == high.split()[1] else low}–{high}"


def in_seconds(seconds: float) -> str:
    """A duration, from parts of a second to days."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, unit_s, unit in ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{_short(seconds / unit_s)} {unit}"
    return f"{_short(seconds / 86400)} days"


def in_bytes(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{_short(num_bytes)} {unit}"
        num_bytes /= 1000
    return f"{_short(num_bytes)} TB"


def in_binary(num_bytes: float) -> str:
    """6.4 GiB: in the binary units in which limits are given."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1000:
            return f"{_three(num_bytes) if unit != 'B' else round(num_bytes)} {unit}"
        num_bytes /= 1024
    return f"{_three(num_bytes)} TiB"


def in_flops(flops: float) -> str:
    """Floating-point operations, without the unit: "1.2 G"."""
    for unit in (" ", " k", " M", " G", " T"):  # the space before "FLOP" stays
        if flops < 1000:
            return f"{_short(flops)}{unit}"
        flops /= 1000
    return f"{_short(flops)} P"


def in_percent(share: float) -> str:
    """A share between 0 and 1. A tiny share is not shown as zero."""
    if 0 < share < 0.01:
        return "<1%"
    return f"{share * 100:.0f}%"


def as_gain(ratio: float) -> str:
    """A predicted gain, which is always an upper bound. Findings without one are about memory."""
    if not math.isfinite(ratio) or ratio < 1.005:
        return "memory"
    digits = 0 if ratio >= 10 else 1 if ratio >= 1.95 else 2
    return f"up to {ratio:.{digits}f}x"


def as_ratio(ratio: float) -> str:
    """A measured speed-up; below 1 it is a slowdown."""
    digits = 0 if ratio >= 100 else 1 if ratio >= 10 else 2 if ratio >= 0.0095 else 3
    return f"{ratio:.{digits}f}x"


def between_ratios(low: float, high: float) -> str:
    """An interval of ratios. An end that too few rounds could not bound yet is a question mark."""
    ends = (as_ratio(low) if low > 0.011 else "?", as_ratio(high) if high < 99 else "?")
    return "–".join(end.removesuffix("x") for end in dict.fromkeys(ends))


def as_count(number: float) -> str:
    """1234567 as 1,234,567; a rate below ten keeps a decimal."""
    return f"{number:,.1f}" if number < 10 and number != int(number) else f"{number:,.0f}"


def plural(number: int, noun: str, ending: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def _three(value: float) -> str:
    """Three digits."""
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"


def times(speed: Speed) -> str:
    if not speed.is_bounded:
        return f"about {speed.ratio:.2f}x, too few rounds for an interval"
    return f"{speed.ratio:.2f}x ({speed.low:.2f} to {speed.high:.2f})"
