"""What fits in a limit of memory: batches and recipes that were really run under it, and what was concluded."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.race import Speed
from slipstream.records.recipe import Recipe

# ran: several steps, the optimizer's first among them. ran_out: of memory. ended: the script was over before that.
TrialOutcome = Literal["ran", "ran_out", "ended", "failed"]


class FitAttempt(msgspec.Struct, frozen=True):
    """One ride of the script: a batch size, a recipe, held to the limit or not."""

    batch_size: int  # 0: not known
    recipe: Recipe = Recipe()  # what was on, the batch size aside
    is_held: bool = True  # to the limit
    outcome: TrialOutcome = "ran"
    reason: str = ""  # why it did not run, in one line
    start_bytes: int = 0  # held when the training began, as the limit counts
    peak_bytes: int | None = None  # at the most, as the limit counts; None: it did not come so far
    step_ms: float | None = None
    samples_per_s: float | None = None
    rate: Speed | None = None  # samples per second against the script as it is, without a limit
    changes: list[str] = []  # what its techniques really did


class Fitting(msgspec.Struct, frozen=True, rename={"attempts": "trials"}):
    """What a `tune --fit` or `tune --memory-limit` concluded."""

    limit_bytes: int
    limit_source: str  # "--memory-limit", "nine tenths of what is free"
    device: str
    own_batch: int
    own_fits: bool
    parameter_bytes: int = 0
    attempts: list[FitAttempt] = []  # in the order of the rides
    largest: int | None = None  # batch that runs within the limit; None: not looked for
    too_large: int | None = None  # the smallest batch that ran out; None: none did
    fastest: int | None = None
    recipe: Recipe = Recipe()  # what is kept
    notes: list[str] = []
    seconds_spent: float = 0.0
