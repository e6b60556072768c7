"""One colour for one phase, in every renderer that has colours: Okabe and Ito's, which all kinds of sight tell apart.
The terminal has only names for colours (`report/ink.py`) and uses the same hues."""

from __future__ import annotations

from typing import Final

PHASE_COLOURS: Final = {
    "input": "#e69f00",
    "transfer": "#cc79a7",
    "forward": "#0072b2",
    "backward": "#56b4e9",
    "optimizer": "#009e73",
    "other": "#8d8d8d",
}


def colour_of(phase: str) -> str:
    return PHASE_COLOURS.get(phase, PHASE_COLOURS["other"])
