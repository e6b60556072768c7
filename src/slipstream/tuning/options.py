"""The options of a tuning. They are complete and immutable before anything starts."""

from __future__ import annotations

import msgspec

from slipstream.records import NumericsClass


class TuneOptions(msgspec.Struct, frozen=True):
    budget_s: float = 300.0
    only: tuple[str, ...] = ()  # race only these techniques
    without: tuple[str, ...] = ()
    allow: NumericsClass = "approximate"  # the loosest class that is tried
    journal: str = ""  # path of the journal; "": none is kept
    margin: float = 0.01  # a gain must exceed this
    alpha: float = 0.05  # probability that a tuning of useless candidates keeps anything
    seed: int = 0  # for the order in which trials take turns
