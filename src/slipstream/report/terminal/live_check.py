"""The status line of a check, as a function of the last progress, the time and the width.

This module returns the line and does not print it. It does not need rich.
"""

from __future__ import annotations

import sys

from slipstream.numbers import in_ms, in_seconds, plural
from slipstream.records import Progress

_WORDS = {
    "start": "starting",
    "warmup": "warming up",
    "watch": "watching",
    "kept": "repeating stored batches",
    "drain": "loading without training",
    "dissect": "profiling one step",
}
_BAR_CELLS = 12


def live_line(progress: Progress | None, elapsed_s: float, width: int, *, unicode: bool = True) -> str:
    """Returns the line. It has at most `width - 1` cells, so that no terminal wraps it. Parts that do not fit are left
    out, the last part first.
    """
    dot = " · " if unicode else " - "
    if progress is None or progress.num_steps == 0:
        parts = ["waiting for the first step", in_seconds(elapsed_s)]
    else:
        share = min(max(progress.share, 0.0), 1.0)
        parts = [
            f"{_bar(share, unicode)} {share * 100:3.0f}%",
            plural(progress.num_steps, "step"),
            _WORDS.get(progress.block, progress.block),
            f"{in_ms(progress.step_ms)} a step",
            in_seconds(elapsed_s),
        ]
    parts[0] = f"slipstream  {parts[0]}"
    while len(parts) > 1 and len(dot.join(parts)) >= width:
        parts.pop()
    line = dot.join(parts)
    line = line if unicode else line.replace("µ", "u")
    return line[: max(width - 1, 0)]


class LiveCheck:
    """Remembers the last progress for the code that prints the line."""

    def __init__(self, *, unicode: bool | None = None) -> None:
        """`unicode` says whether the line may have Unicode symbols. None: the encoding of stdout decides."""
        self._progress: Progress | None = None
        self._unicode = (sys.stdout.encoding or "").lower().startswith("utf") if unicode is None else unicode

    def take(self, progress: Progress) -> None:
        self._progress = progress

    def text(self, elapsed_s: float, width: int) -> str:
        return live_line(self._progress, elapsed_s, width, unicode=self._unicode)


def _bar(share: float, unicode: bool) -> str:
    full, empty = ("━", "╌") if unicode else ("#", ".")
    cells = round(share * _BAR_CELLS)
    return full * cells + empty * (_BAR_CELLS - cells)
