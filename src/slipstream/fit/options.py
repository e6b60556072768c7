"""The options of a fit, which are complete and checked before anything starts, and the error for one that fails."""

from __future__ import annotations

import msgspec

from slipstream.records import NumericsClass

FIT_BUDGET_S = 300.0  # enough for a dozen starts of most scripts


class FitError(Exception):
    """There is no solution. The message tells the user what does not fit, and what would."""


class FitOptions(msgspec.Struct, frozen=True):
    limit_bytes: int
    limit_source: str = "--memory-limit"
    # True (--fit): find the largest and the fastest batch. False: find only whether the script's own batch fits, and
    # what makes it fit.
    finds_batch: bool = True
    races: bool = True  # False: find the largest batch, but not the fastest
    budget_s: float = FIT_BUDGET_S
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    allow: NumericsClass = "approximate"
    seed: int = 0
