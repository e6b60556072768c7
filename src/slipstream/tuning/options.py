"""What the user asked of a tuning. Frozen and whole before anything starts."""

from __future__ import annotations

import msgspec

from slipstream.records import NumericsClass


class TuneOptions(msgspec.Struct, frozen=True):
    budget_s: float = 300.0
    only: tuple[str, ...] = ()  # these techniques and no others
    without: tuple[str, ...] = ()
    allow: NumericsClass = "approximate"  # the loosest that is tried
    journal: str = ""  # path of the file to resume from; "": nothing is remembered
    margin: float = 0.01  # a gain must be beyond this
    alpha: float = 0.05  # how often a tuning of useless candidates may keep anything
    seed: int = 0  # of the order in which riders take turns
