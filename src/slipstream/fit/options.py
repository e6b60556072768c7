"""The options of a fit, and the error that a fit without a solution raises."""

from __future__ import annotations

import msgspec

from slipstream.records import NumericsClass

FIT_BUDGET_S = 300.0  # enough for a dozen starts of most scripts


class FitError(Exception):
    """There is no solution. The message tells the user what does not fit, and what would fit."""


class FitOptions(msgspec.Struct, frozen=True):
    limit_bytes: int
    limit_source: str = "--memory-limit"
    # True (--fit): the search also finds the largest and the fastest batch. False: only the script's own batch is
    # tried, and techniques that make this batch fit.
    finds_batch: bool = True
    races: bool = True  # False: the search finds the largest batch, but not the fastest batch
    budget_s: float = FIT_BUDGET_S
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    allow: NumericsClass = "approximate"
    seed: int = 0
