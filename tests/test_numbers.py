"""Numbers with their units."""

import math

import pytest

from slipstream.numbers import (
    as_gain,
    between_ms,
    in_binary,
    in_bytes,
    in_flops,
    in_ms,
    in_percent,
    in_seconds,
    part_of_ms,
    plural,
)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (0.004, "4 µs"),
        (0.42, "0.42 ms"),
        (8.06, "8.1 ms"),
        (63.2, "63 ms"),
        (1200, "1.2 s"),
        (90_000, "1.5 min"),
    ],
)
def test_times_of_a_step(ms: float, text: str) -> None:
    assert in_ms(ms) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "200 ms"), (3.14, "3.1 s"), (31.4, "31 s"), (600, "10 min"), (50_000, "14 h"), (400_000, "4.6 days")],
)
def test_durations(seconds: float, text: str) -> None:
    assert in_seconds(seconds) == text


def test_an_interval_names_its_unit_once_where_it_can() -> None:
    assert between_ms(62.1, 64.2) == "62–64 ms"
    assert between_ms(990, 1010) == "990 ms–1 s"
    assert part_of_ms(40.2, 63.1) == "40 of 63 ms"
    assert part_of_ms(40.2, 1600) == "40 ms of 1.6 s"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.0, "memory"), (math.inf, "memory"), (1.04, "up to 1.04x"), (2.8, "up to 2.8x"), (12.3, "up to 12x")],
)
def test_gains_are_upper_bounds(ratio: float, text: str) -> None:
    assert as_gain(ratio) == text


def test_sizes_shares_and_counts() -> None:
    assert in_bytes(67_108_864) == "67 MB" and in_bytes(199_000) == "199 kB"
    assert in_binary(6 << 30) == "6.00 GiB"
    assert in_flops(3_900_000_000) == "3.9 G" and in_flops(256) == "256 "
    assert in_percent(0.004) == "<1%"
    assert in_percent(0.0) == "0%"
    assert plural(1, "epoch") == "1 epoch"
    assert plural(1200, "batch", "es") == "1,200 batches"
    assert plural(1.5, "core") == "1.5 cores" and plural(2.0, "core") == "2 cores"
