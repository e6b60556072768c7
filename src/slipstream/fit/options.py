"""What the user asked of a fit, and why it cannot be had. Frozen and whole before anything starts."""

from __future__ import annotations

import msgspec

from slipstream.records import NumericsClass


class FitError(Exception):
    """A sentence for the user: what does not fit, and what would."""


class FitOptions(msgspec.Struct, frozen=True):
    limit_bytes: int
    limit_source: str = "--memory-limit"
    finds_batch: bool = True  # --fit: the largest and the fastest; else only whether the script's own runs, and how
    races: bool = True  # False: the largest is enough
    budget_s: float = 300.0
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    allow: NumericsClass = "approximate"
    seed: int = 0
