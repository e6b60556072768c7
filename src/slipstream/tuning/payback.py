"""What a technique costs once (compilation, worker start), and after how many steps it has paid."""

from __future__ import annotations

import math

from slipstream.diagnose.training_time import training_length
from slipstream.records import Session

CHANCE = 0.1  # of a start-up: two launches of the same script differ by as much


def one_off_s(startup_s: float, base_startup_s: float) -> float:
    """Start-up beyond the base's; 0 where it is no more than launches differ by themselves."""
    beyond_s = startup_s - base_startup_s
    return beyond_s if beyond_s > CHANCE * base_startup_s else 0.0


def payback_steps(one_off: float, base_step_s: float, step_s: float) -> int | None:
    """None: it costs nothing once, or never pays."""
    if one_off <= 0.0 or step_s >= base_step_s:
        return None
    return math.ceil(one_off / (base_step_s - step_s) - 1e-6)


def never_pays(steps: int | None, session: Session) -> str:
    """Why it is not worth its one-off cost in this training; "" where it is, or where its length is unknown."""
    num_steps, _ = training_length(session)
    if steps is None or num_steps is None or steps <= num_steps:
        return ""
    return f"pays only after {steps:,} steps; this training has {num_steps:,.0f}"
