"""A cause of lost time with its evidence, and the ceilings that limit what any remedy can gain."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.site import Site

Bound = Literal["input", "compute", "cores", "other", "unknown"]


class Ceilings(msgspec.Struct, frozen=True):
    """Step times if one resource were free. None: not measured; `notes` says why."""

    compute_ms: float | None = None  # the step if data loading were free
    input_ms: float | None = None  # the step if computation were free
    shared_ms: float | None = None  # (CPU time of input + CPU time of compute) / cores
    input_cpu_ms: float | None = None  # CPU time per step, all processes
    compute_cpu_ms: float | None = None
    notes: list[str] = []

    def best_ms(self) -> float | None:
        """Returns the step time if input and computation overlapped perfectly on this machine."""
        known = [ms for ms in (self.compute_ms, self.input_ms, self.shared_ms) if ms is not None]
        return max(known) if known else None


class Finding(msgspec.Struct, frozen=True):
    cause: str  # an id: no_workers, slow_decode, ...
    title: str  # one short line
    evidence: str  # a sentence with numbers from this session
    predicted_gain: float  # step time now divided by step time with the change; 1.0: no gain
    change: str  # the code that the user should write, one or more lines; "": none
    site: Site | None = None
    techniques: list[str] = []
    settings: dict[str, str] = {}  # what the change sets: {"num_workers": "2"}
    advice: str = ""  # a sentence about the change, or ""

    @property
    def where(self) -> str:
        return str(self.site) if self.site else ""
