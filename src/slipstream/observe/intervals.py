"""Splits time among nested intervals. Every moment belongs to the innermost interval, except inside an interval
labelled "apart"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

PHASE_OF_KIND = {
    "iterator": "input",
    "input": "input",
    "transfer": "transfer",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "scheduler": "other",
    "saving": "other",
}


class Interval(NamedTuple):
    start: float
    end: float
    label: str


def share_out(intervals: Iterable[Interval], start: float, end: float, rest: str) -> dict[str, float]:
    """Returns the exclusive time by label between start and end. Time that no interval covers goes to `rest`. The
    values add up to end - start. Everything inside an interval labelled "apart" counts as "apart"."""
    shares: dict[str, float] = {rest: 0.0}
    for piece in lay_out(intervals, start, end, rest):
        shares[piece.label] = shares.get(piece.label, 0.0) + piece.end - piece.start
    return shares


def lay_out(intervals: Iterable[Interval], start: float, end: float, rest: str) -> list[Interval]:
    """Like `share_out`, but returns the pieces in order, without gaps between them."""
    pieces: list[Interval] = []
    open_ones: list[Interval] = []
    now = start

    def advance(to: float) -> None:
        nonlocal now
        if to > now:
            pieces.append(Interval(now, to, _owner(open_ones, rest)))
            now = to

    for interval in sorted(intervals, key=lambda i: (i.start, -i.end)):
        if interval.end <= start or interval.start >= end:
            continue
        while open_ones and open_ones[-1].end <= interval.start:
            advance(open_ones[-1].end)
            open_ones.pop()
        advance(interval.start)
        bound = open_ones[-1].end if open_ones else end
        open_ones.append(interval._replace(end=min(interval.end, bound, end)))
    while open_ones:
        advance(open_ones[-1].end)
        open_ones.pop()
    advance(end)
    return pieces


def _owner(open_ones: Sequence[Interval], rest: str) -> str:
    if any(interval.label == "apart" for interval in open_ones):
        return "apart"
    return open_ones[-1].label if open_ones else rest
