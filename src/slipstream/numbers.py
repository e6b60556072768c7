"""Formats numbers with their units: durations, sizes, shares, counts, rates and ratios.

Sizes are in powers of 1000 (kB, MB, GB), as disks and networks count. Memory limits, and memory that is compared with a
limit, are in powers of 1024 (MiB, GiB), as `--memory-limit`, Docker and cgroups count.
"""

from __future__ import annotations

import math

from slipstream.records import Speed


def in_ms(ms: float) -> str:
    """Returns the duration of a step or of a part of a step, in a suitable unit."""
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
    """Returns an interval: "62–64 ms"."""
    return _sharing_unit(in_ms(low_ms), "–", in_ms(high_ms))


def part_of_ms(part_ms: float, whole_ms: float) -> str:
    """Returns a part and its whole: "40 of 63 ms"."""
    return _sharing_unit(in_ms(part_ms), " of ", in_ms(whole_ms))


def _sharing_unit(first: str, between: str, second: str) -> str:
    """Joins two durations. If both have the same unit, the unit appears once."""
    number, unit = first.split()
    return f"{number if second.endswith(f' {unit}') else first}{between}{second}"


def ms_in_digits(ms: float) -> str:
    """Returns about three digits without the unit, for a table whose heading has the unit."""
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"


def in_seconds(seconds: float) -> str:
    """Returns a duration, from parts of a second to days."""
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
    """Returns a size in the binary units in which limits are given: "6.40 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1000:
            return f"{_three(num_bytes) if unit != 'B' else round(num_bytes)} {unit}"
        num_bytes /= 1024
    return f"{_three(num_bytes)} TiB"


def in_flops(flops: float) -> str:
    """Returns a number of floating-point operations, without the unit: "1.2 G"."""
    for unit in (" ", " k", " M", " G", " T"):  # the caller appends "FLOP", so the space is needed without a prefix too
        if flops < 1000:
            return f"{_short(flops)}{unit}"
        flops /= 1000
    return f"{_short(flops)} P"


def in_percent(share: float) -> str:
    """Returns a share between 0 and 1 as a percentage. A tiny share is not shown as zero."""
    if 0 < share < 0.01:
        return "<1%"
    return f"{share * 100:.0f}%"


def as_gain(ratio: float) -> str:
    """Returns a predicted gain, which is always an upper bound. Findings without a gain are about memory."""
    if not math.isfinite(ratio) or ratio < 1.005:
        return "memory"
    digits = 0 if ratio >= 10 else 1 if ratio >= 1.95 else 2
    return f"up to {ratio:.{digits}f}x"


def as_ratio(ratio: float) -> str:
    """Returns a measured speed-up. Below 1 it is a slowdown."""
    digits = 0 if ratio >= 100 else 1 if ratio >= 10 else 2 if ratio >= 0.0095 else 3
    return f"{ratio:.{digits}f}x"


def between_ratios(low: float, high: float) -> str:
    """Returns an interval of ratios. An end for which there were too few rounds is a question mark."""
    ends = (as_ratio(low) if low > 0.011 else "?", as_ratio(high) if high < 99 else "?")
    return "–".join(end.removesuffix("x") for end in dict.fromkeys(ends))


def as_count(number: float) -> str:
    """Returns a count or a rate: "1,234,567". A rate below ten has one decimal."""
    return f"{number:,.1f}" if number < 10 and number != int(number) else f"{number:,.0f}"


def plural(number: float, noun: str, ending: str = "s") -> str:
    digits = 0 if number == int(number) else 1
    return f"{number:,.{digits}f} {noun}{'' if number == 1 else ending}"


def _three(value: float) -> str:
    """Returns three digits."""
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"


def times(speed: Speed) -> str:
    """Returns a measured speed-up with its 95% interval."""
    if not speed.is_bounded:
        return f"about {speed.ratio:.2f}x, too few rounds for an interval"
    return f"{speed.ratio:.2f}x ({speed.low:.2f} to {speed.high:.2f})"
