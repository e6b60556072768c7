"""A comparison of two sessions: what changed between them, and how the step time changed."""

from __future__ import annotations

from typing import Literal

import msgspec

# unsure: too few undisturbed steps, or other programs used the cores. unknown: one of the sessions has no steps.
Outcome = Literal["faster", "slower", "same", "unsure", "unknown"]


class Difference(msgspec.Struct, frozen=True):
    what: str  # "arguments", "torch", "recipe"
    before: str
    after: str


class PhaseChange(msgspec.Struct, frozen=True):
    phase: str
    before_ms: float
    after_ms: float
    low_ms: float  # 95% interval of after - before
    high_ms: float

    @property
    def is_beyond_noise(self) -> bool:
        return self.low_ms > 0 or self.high_ms < 0


class BusySession(msgspec.Struct, frozen=True):
    """Other programs used the cores during one of the sessions."""

    session: str  # the session's name in the comparison
    # at_start: the machine was busy when the session began, and nothing later is known. more: other programs used more
    # cores during this session, enough to explain the difference between the sessions.
    when: Literal["during", "at_start", "more"]
    load: float  # the system's load when the session began; for `more`: the additional cores that other programs used
    num_cores: float


class FewSteps(msgspec.Struct, frozen=True):
    """One of the sessions has too few undisturbed steps for a conclusion."""

    session: str  # the session's name in the comparison
    num_groups: int
    group_size: int  # consecutive steps that count as one; with k workers every k-th step waits for all workers


class SessionComparison(msgspec.Struct, frozen=True):
    """Ratios are the step time before divided by the step time after: more than 1 is faster."""

    before: str
    after: str
    outcome: Outcome
    differences: list[Difference]
    before_ms: float | None = None
    after_ms: float | None = None
    ratio: float | None = None
    low: float | None = None  # 95% interval, from the noise inside both sessions
    high: float | None = None
    phases: list[PhaseChange] = []
    is_same_machine: bool = True
    notes: list[str] = []
    busy: list[BusySession] = []  # sessions in which other programs may be the cause of the difference
    few: list[FewSteps] = []
