"""The options of a tuning. They are complete and immutable before anything starts."""

from __future__ import annotations

import msgspec

from slipstream.records import NumericsClass


class TuneOptions(msgspec.Struct, frozen=True):
    budget_s: float | None = None  # None: the start-up and the step time of the script determine the budget
    only: tuple[str, ...] = ()  # race only these techniques
    without: tuple[str, ...] = ()  # do not race these techniques
    allow: NumericsClass = "approximate"  # the loosest class that is tried
    journal: str = ""  # path of the journal; "": none is kept
    is_resumed: bool = False  # continue from the journal
    is_patchable: bool = False  # race only what can be written into the source
    margin: float = 0.01  # a recipe is kept only if its gain exceeds this share
    alpha: float = 0.05  # largest probability that a tuning of useless candidates keeps anything
    seed: int = 0  # the seed of the random order in which trials take turns
