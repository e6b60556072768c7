"""What fits in a memory limit: the batch sizes and recipes that were run under the limit, and the conclusion."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.race import Speed, TechniqueNote
from slipstream.records.recipe import Recipe

# ran: the trial ran several steps, including the first step of the optimizer. ran_out: it ran out of memory. ended: the
# script ended before it ran these steps.
TrialOutcome = Literal["ran", "ran_out", "ended", "failed"]


class FitAttempt(msgspec.Struct, frozen=True):
    """One trial of the script with a batch size and a recipe, under the limit or without it."""

    batch_size: int  # 0: not known
    recipe: Recipe = Recipe()  # the techniques that save memory; the batch size is not part of it
    is_held: bool = True  # whether the trial ran under the limit
    outcome: TrialOutcome = "ran"
    reason: str = ""  # why the trial did not run, in one line
    start_bytes: int = 0  # memory in use when the training began, counted in the same way as the limit
    peak_bytes: int | None = None  # maximum of the memory in use, counted like start_bytes; None: not measured
    step_ms: float | None = None
    samples_per_s: float | None = None
    rate: Speed | None = None  # samples per second relative to the unchanged script without a limit
    changes: list[TechniqueNote] = []  # what the techniques of the recipe changed
    declined: list[TechniqueNote] = []  # why techniques of the recipe declined


class Fitting(msgspec.Struct, frozen=True, rename={"attempts": "trials"}):
    """The result of `tune --fit` or `tune --memory-limit`."""

    limit_bytes: int
    limit_source: str  # "--memory-limit", "nine tenths of what is free"
    device: str
    own_batch: int
    own_fits: bool
    parameter_bytes: int = 0
    attempts: list[FitAttempt] = []  # the attempts in the order in which they ran
    largest: int | None = None  # largest batch that runs within the limit; None: not searched
    too_large: int | None = None  # smallest batch that ran out of memory; None: none did
    fastest: int | None = None
    recipe: Recipe = Recipe()  # the recipe that is kept
    notes: list[str] = []
    seconds_spent: float = 0.0
